package database

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// timelines is the file of a data directory with the highest timeline of each PostgreSQL
// cluster to which takt has written, by the cluster's system identifier.
const timelines = "timelines"

// sqlTimeline returns "" on a standby. The first 8 digits of a WAL file's name are its timeline
// in hexadecimal, so they can be compared as texts.
const sqlTimeline = `/* timeline */ SELECT CASE WHEN pg_is_in_recovery() THEN ''
	ELSE system_identifier || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8) END FROM pg_control_system()`

// Guard makes the connections of a Source refuse a primary with a lower timeline than takt has
// written to: a former primary that was replaced by its standby and lacks the later commits. A
// restored or moved database is another cluster and is accepted. Safe for concurrent use.
type Guard struct {
	dir   string     // the data directory
	notes bool       // whether it writes the file
	mu    sync.Mutex // held while the file is read and written
}

// NewGuard returns a guard that has its file in a data directory.
func NewGuard(dir string) *Guard { return &Guard{dir: dir, notes: true} }

// NewReadingGuard returns a guard that does not write the file. It is for commands, because
// another user than that of takt serve may run them.
func NewReadingGuard(dir string) *Guard { return &Guard{dir: dir} }

// Source returns source with the guard's check of each connection.
func (g *Guard) Source(source Source) Source {
	return func(ctx context.Context) (*pgx.ConnConfig, error) {
		cfg, err := source(ctx)
		if err != nil {
			return nil, err
		}
		before := cfg.ValidateConnect
		cfg.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			if before != nil {
				if err := before(ctx, conn); err != nil {
					return err
				}
			}
			found := conn.ExecParams(ctx, sqlTimeline, nil, nil, nil, nil).Read()
			// Some hosted services hide it: they guard their failovers themselves.
			if hidden, ok := errors.AsType[*pgconn.PgError](found.Err); ok && (hidden.Code == "42501" || hidden.Code == "0A000") {
				return nil
			}
			if found.Err != nil {
				return fmt.Errorf("reading the database's timeline: %w", found.Err)
			}
			cluster, now, primary := strings.Cut(string(found.Rows[0][0]), " ")
			if !primary {
				return nil
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.note(cluster, now)
		}
		return cfg, nil
	}
}

// note refuses a lower timeline than that in the file, and makes a higher one durable there
// before anything is written to the database.
func (g *Guard) note(cluster, now string) error {
	root, err := os.OpenRoot(g.dir)
	if errors.Is(err, fs.ErrNotExist) && !g.notes {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening the data directory: %w", err)
	}
	defer root.Close()
	highest := map[string]string{}
	raw, err := root.ReadFile(timelines)
	if err == nil {
		err = json.Unmarshal(raw, &highest)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the timelines that takt has written to: %s/%s: %w", g.dir, timelines, err)
	}
	switch known := highest[cluster]; {
	case now == known, now > known && !g.notes:
		return nil
	case now < known:
		return fmt.Errorf("this PostgreSQL is on timeline %s, and takt has written to timeline %s: it was the primary before a failover. "+
			"Make it a standby of the current primary (pg_rewind or pg_basebackup). If it was put back on purpose, "+
			"what was committed since is lost; then remove %s/%s", now, known, g.dir, timelines)
	}
	highest[cluster] = now
	if raw, err = json.Marshal(highest); err == nil {
		err = writeFile(root, timelines, string(raw)+"\n", nil)
	}
	if err != nil {
		return fmt.Errorf("recording the database's timeline: %w", err)
	}
	return nil
}
