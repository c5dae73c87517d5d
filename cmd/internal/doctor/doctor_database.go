package doctor

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/actors/database"
	"takt/cmd/internal/settings"
	"takt/store/postgres"
	"takt/store/seal"
)

// checkLimit bounds each check that asks another machine.
const checkLimit = 15 * time.Second

var errSlowCheck = errors.New("no answer in time")

func (d *doctor) database(ctx context.Context, cfg settings.Config, keys *seal.Ring, running bool) {
	const check = "database"
	ctx, cancel := context.WithTimeoutCause(ctx, checkLimit, errSlowCheck)
	defer cancel()
	var source database.Source
	var err error
	switch {
	case cfg.DatabaseURL != "":
		var direct database.Source
		if source, direct, err = cfg.ExternalDatabase(); err == nil && direct != nil {
			d.pooler(ctx, source)
			source = direct
		}
	case running:
		var attached *database.Attachment
		if attached, err = database.Attach(cfg.DataDir); err == nil {
			defer attached.Close()
			source = attached.ConnConfig
		}
	default:
		var found database.Binaries
		if found, err = database.Installed(ctx, cfg.DataDir, os.Getenv("PATH")); err == nil {
			d.well(check, "takt will run PostgreSQL %d of %s", found.Major, found.Dir)
			return
		}
		d.bad(check, "the message says what to install", "%v", err)
		return
	}
	var in postgres.Inspection
	if err == nil {
		conn, cerr := source(ctx)
		if err = cerr; err == nil {
			in, err = postgres.Inspect(ctx, conn, keys)
		}
	}
	if err != nil {
		d.bad(check, "check --database-url, that the server runs, its pg_hba.conf and what is between", "%v", err)
		return
	}
	d.inspected(cfg, in)
}

// pooler tells whether PgBouncer lets takt in.
func (d *doctor) pooler(ctx context.Context, source database.Source) {
	conn, err := source(ctx)
	if err == nil {
		conn.DefaultQueryExecMode = pgx.QueryExecModeExec
		var c *pgx.Conn
		if c, err = pgx.ConnectConfig(ctx, conn); err == nil {
			err = errors.Join(c.Ping(ctx), c.Close(ctx))
		}
	}
	d.suspect("pooler", err, "check --database-url, that PgBouncer runs, and its own log", false, "", "it answers")
}

// replication tells what a failover loses, if the database has standbys.
func (d *doctor) replication(cfg settings.Config, in postgres.Inspection) {
	const check = "replication"
	hosts := database.Hosts(cfg.DatabaseURL)
	if in.Standby || in.Standbys == 0 && hosts < 2 {
		return
	}
	before := d.failed + d.doubtful
	set := in.Settings
	waits := set["synchronous_standby_names"] != ""
	switch {
	case !waits:
		d.warn(check, "set synchronous_standby_names, for example to 'ANY 1 (*)'",
			"commits wait for no standby: a failover loses the last builds, results and webhooks that takt has acknowledged")
	case in.Standbys == 0:
		d.bad(check, "start the standby, or empty synchronous_standby_names until it is back", "commits wait for a standby, and none follows: takt answers 503")
	case set["synchronous_commit"] != "on" && set["synchronous_commit"] != "remote_apply":
		d.warn(check, "set synchronous_commit to on", "synchronous_commit is %s: commits don't wait until a standby has them on its disk, so a failover can lose what takt has acknowledged", set["synchronous_commit"])
	}
	if in.Standbys == 0 && !waits {
		d.warn(check, "start a standby, or name one host in --database-url", "no standby follows: if this host is lost, so is everything since the last backup")
	}
	if set["wal_level"] == "minimal" || set["max_wal_senders"] == "0" {
		d.bad(check, "set wal_level to replica and max_wal_senders to 10", "no standby can follow: wal_level is %s and max_wal_senders %s", set["wal_level"], set["max_wal_senders"])
	}
	if set["wal_log_hints"] != "on" && set["data_checksums"] != "on" {
		d.warn(check, "set wal_log_hints to on, or turn data checksums on", "pg_rewind can't make a former primary a standby: without data checksums and wal_log_hints it has to be copied anew")
	}
	if hosts < 2 {
		d.warn(check, "name all hosts in --database-url (postgres://takt@db1,db2/takt), unless its address moves to the new primary",
			"--database-url names one host: takt does not find the new primary after a failover")
	}
	if before == d.failed+d.doubtful {
		d.well(check, "%d standbys; commits wait until as many as synchronous_standby_names says have them", in.Standbys)
	}
}

// inspected tells what is wrong with a database that answers.
func (d *doctor) inspected(cfg settings.Config, in postgres.Inspection) {
	const check = "database"
	failed := d.failed
	if in.Version < 14_00_00 {
		d.bad(check, "upgrade it to 14 or newer", "PostgreSQL %d is too old", in.Version/10000)
	}
	if in.Standby {
		d.bad(check, "name the primary in --database-url, or use target_session_attrs=read-write", "it is a standby, which takes no writes")
	}
	if in.Encoding != "UTF8" {
		d.bad(check, "make one with ENCODING 'UTF8'", "its encoding is %s", in.Encoding)
	}
	if !in.MayCreate {
		d.bad(check, "GRANT CREATE ON SCHEMA public TO the login of --database-url, or make it the database's owner", "this login may not make tables")
	}
	if in.Connections < cfg.DatabasePool+2 { // a listener, and one for whoever looks after it
		d.bad(check, "raise max_connections or lower --db-pool, for each controller", "the server grants %d connections, and --db-pool wants %d and a listener", in.Connections, cfg.DatabasePool)
	}
	for _, lax := range in.Lax {
		d.bad(check, "turn it on: builds that were accepted may be lost without it", "%s", lax)
	}
	if d.failed == failed {
		d.well(check, "PostgreSQL %d.%d, %d connections", in.Version/10000, in.Version%10000, in.Connections)
	}
	d.replication(cfg, in)
	if cfg.DatabaseDirectURL != "" {
		for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
			if in.Settings[name] == "0" {
				d.warn("pooler", "ALTER ROLE … SET "+name+", as docs/operate.md says", "%s of this login is 0, and PgBouncer does not pass takt's on: nothing ends what hangs", name)
			}
		}
	}
	if in.Keys != nil {
		d.bad("keys", "start with the key that the message names", "%v", in.Keys)
	}
	d.clock("the database's", in.Ahead)
}
