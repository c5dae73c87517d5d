package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store/storetest/pgbin"
	"takt/store/storetest/pgtest"
)

// Server is a PostgreSQL that this process started.
type Server struct {
	dir  string
	cmd  *exec.Cmd
	life io.Closer // the server ends when this is closed
}

// script makes a cluster and runs it until standard input ends. Standard
// input ends when the test binary closes it or ends. $1 programs, $2 directory, $3 options.
const script = `
exec 3<&0 </dev/null
"$1/initdb" -D "$2/data" -U takt --auth=trust -E UTF8 --locale=C --no-sync --no-instructions >"$2/log" 2>&1 ||
	{ : >"$2/failed"; exit 1; }
("$1/postgres" -D "$2/data" -k "$2" -c listen_addresses= $3 >>"$2/log" 2>&1; : >"$2/failed") 3<&- &
read -r line <&3
kill -QUIT "$(head -n 1 "$2/data/postmaster.pid")"
wait
rm -rf "$2"
`

const (
	options = "-c max_connections=500 -c log_min_messages=error "
	// fast is for tests, durable for benchmarks: PostgreSQL's own defaults.
	fast    = options + "-c shared_buffers=64MB -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_wal_size=256MB"
	durable = options + "-c shared_buffers=512MB -c max_wal_size=4GB"
)

// Serve starts a server for several test binaries, which find it by TAKT_TEST_DATABASE_URL.
func Serve(ctx context.Context) (*Server, error) { return start(ctx, fast) }

// start starts a server and waits until it answers.
func start(ctx context.Context, options string) (*Server, error) {
	bin, err := pgbin.Dir()
	if err != nil {
		return nil, err
	}
	parent := pgtest.Disk()
	if options == fast {
		parent = pgtest.Scratch()
	}
	dir, err := os.MkdirTemp(parent, "takt-test-")
	if err != nil {
		return nil, err
	}
	attr := &syscall.SysProcAttr{Setpgid: true} // so that an interrupt at the terminal does not reach it
	if os.Geteuid() == 0 {
		cred, err := pgtest.Unprivileged()
		if err != nil {
			return nil, err
		}
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			return nil, err
		}
		attr.Credential = cred
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", script, "sh", bin, dir, options)
	cmd.Dir, cmd.SysProcAttr = dir, attr
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	s := &Server{dir: dir, cmd: cmd, life: life}
	if err := s.await(ctx); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		s.Stop()
		return nil, fmt.Errorf("starting PostgreSQL: %w\n%s", err, log)
	}
	return s, nil
}

// await waits until the server answers.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("it does not answer"))
	defer cancel()
	cfg, err := pgx.ParseConfig(s.URL("postgres"))
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-tick.C:
			if _, gone := os.Stat(filepath.Join(s.dir, "failed")); gone == nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// URL is how to reach a database of the server.
func (s *Server) URL(database string) string {
	return "host=" + s.dir + " user=takt dbname=" + database
}

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	_ = s.life.Close()
	_ = s.cmd.Wait() // the exit status does not matter
}
