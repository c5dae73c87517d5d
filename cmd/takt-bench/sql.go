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
	"slices"
	"strconv"
	"strings"
	"time"

	"takt/cmd/internal/process"
)

// database reaches the embedded PostgreSQL of a controller with PostgreSQL's
// own programs, as an operator would.
type database struct {
	dir      string // of the socket
	password string
	name     string
}

func databaseOf(c *process.Controller) database {
	return database{
		dir:      filepath.Join(c.DataDir, "postgres"),
		password: process.ReadWord(filepath.Join(c.DataDir, "postgres.password")),
		name:     "takt",
	}
}

const port = "5432"

const (
	sqlWAL  = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	sqlRows = `SELECT tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database()`
)

// program finds one of PostgreSQL's programs, the newest version first.
func program(name string) (string, error) {
	var dirs []string
	for _, pattern := range []string{"/opt/homebrew/opt/postgresql*/bin", "/usr/lib/postgresql/*/bin"} {
		found, _ := filepath.Glob(pattern) // it is well formed
		dirs = append(dirs, found...)
	}
	slices.Sort(dirs)
	slices.Reverse(dirs)
	for _, dir := range dirs {
		if st, err := os.Stat(filepath.Join(dir, name)); err == nil && !st.IsDir() {
			return filepath.Join(dir, name), nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is missing (Debian: apt-get install postgresql): %w", name, err)
	}
	return path, nil
}

// run runs one of PostgreSQL's programs and returns what it prints.
func (d database) run(ctx context.Context, name, stdin string, args ...string) string {
	cmd := exec.CommandContext(ctx, must(program(name)), args...)
	cmd.Env = append(process.Site{Environ: os.Environ()}.Environment(), "PGHOST="+d.dir, "PGPORT="+port, "PGUSER=takt", "PGPASSWORD="+d.password, "PGDATABASE="+d.name)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		check(fmt.Errorf("%s: %w\n%s", name, err, errs.String()))
	}
	return out.String()
}

// exec runs a script, stopping at its first error, and returns what it prints.
func (d database) exec(ctx context.Context, script string) string {
	return strings.TrimSpace(d.run(ctx, "psql", script, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"))
}

// number runs a query that gives one whole number.
func (d database) number(ctx context.Context, query string) int {
	return must(strconv.Atoi(d.exec(ctx, query)))
}

// expect runs a script that counts what must not be lost, or must not be, and wants a count.
func (d database) expect(ctx context.Context, what, query string, want int) {
	if got := d.number(ctx, query); got != want {
		check(fmt.Errorf("%w: %s: %d, want %d", errBroken, what, got, want))
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
			return work(int(must(strconv.ParseFloat(m[1], 64))*duration.Seconds()), duration)
		}
	}
	check(errors.New("pgbench said no rate"))
	return sample{}
}
