package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/store/storetest/pgbin"
)

// database is the connection string of a controller's embedded PostgreSQL. It is used with
// PostgreSQL's own programs, as an operator would.
type database string

const (
	sqlWAL  = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	sqlRows = `SELECT tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database()`
)

// run runs one of PostgreSQL's programs and returns what it prints.
func (d database) run(ctx context.Context, name, stdin string, args ...string) string {
	cmd := exec.CommandContext(ctx, filepath.Join(must.Get(pgbin.Dir()), name), append(args, string(d))...)
	cmd.Env = process.Site{Environ: os.Environ()}.Environment()
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		must.Do(fmt.Errorf("%s: %w\n%s", name, err, errs.String()))
	}
	return out.String()
}

// exec runs a script, stopping at its first error, and returns what it prints.
func (d database) exec(ctx context.Context, script string) string {
	return strings.TrimSpace(d.run(ctx, "psql", script, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"))
}

// number runs a query that gives one whole number.
func (d database) number(ctx context.Context, query string) int {
	return must.Get(strconv.Atoi(d.exec(ctx, query)))
}

// expect runs a script that counts what must not be lost, or must not be, and wants a count.
func (d database) expect(ctx context.Context, what, query string, want int) {
	if got := d.number(ctx, query); got != want {
		must.Do(fmt.Errorf("%w: %s: %d, want %d", errBroken, what, got, want))
	}
}

// pgbench runs a script with clients connections and counts transactions. On a
// machine so busy that a short run gets none done it runs longer. It knows whole seconds
// only, so in less each connection has some transactions to do.
func (d database) pgbench(ctx context.Context, script string, clients int, duration time.Duration) sample {
	limit := []string{"-t", "10"}
	for ; duration < time.Minute; duration *= 3 {
		if duration >= time.Second {
			limit = []string{"-T", strconv.Itoa(int(duration.Seconds()))}
		}
		out := d.run(ctx, "pgbench", "", append([]string{"-n", "-M", "prepared", "-f", script, "-c", strconv.Itoa(clients), "-j", "2"}, limit...)...)
		if m := regexp.MustCompile(`tps = ([0-9.]+)`).FindStringSubmatch(out); m != nil {
			return work(int(must.Get(strconv.ParseFloat(m[1], 64))*duration.Seconds()), duration)
		}
	}
	must.Do(errors.New("pgbench said no rate"))
	return sample{}
}
