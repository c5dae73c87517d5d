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

	"takt/store/storetest/pgtest"
)

// server is a PostgreSQL that this process started.
type server struct {
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
	options = "-c max_connections=300 -c log_min_messages=error "
	// fast is for tests, durable for benchmarks: PostgreSQL's own defaults.
	fast    = options + "-c shared_buffers=64MB -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_wal_size=256MB"
	durable = options + "-c shared_buffers=512MB -c max_wal_size=4GB"
)

// start starts a server and waits until it answers.
func start(ctx context.Context, options string) (*server, error) {
	bin, err := pgtest.BinDir()
	if err != nil {
		return nil, err
	}
	parent := "/tmp" // a short name, because of the socket
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
	s := &server{dir: dir, cmd: cmd, life: life}
	if err := s.await(ctx); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		s.stop()
		return nil, fmt.Errorf("starting PostgreSQL: %w\n%s", err, log)
	}
	return s, nil
}

// await waits until the server answers.
func (s *server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("it does not answer"))
	defer cancel()
	cfg, err := pgx.ParseConfig(s.url("postgres"))
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

func (s *server) url(database string) string {
	return "host=" + s.dir + " user=takt dbname=" + database
}

// stop ends the server and removes its files.
func (s *server) stop() {
	_ = s.life.Close()
	_ = s.cmd.Wait() // the exit status does not matter
}
