// Package pgtest runs PostgreSQL servers of a test's or a drill's own, which can be killed,
// stopped, copied to a standby, promoted and started again.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store/storetest/pgbin"
)

// Node is a server at a port of the loopback interface. It ends with the process that started
// it.
type Node struct {
	// Dir is its cluster, and Dir.log its log.
	Dir  string
	Port int

	// User runs the server; nil for this process's user.
	User *syscall.Credential

	bin  string
	sh   *exec.Cmd
	life io.Closer // the server ends when this is closed
}

// New makes a directory below parent and chooses a port. There is no cluster yet.
func New(parent string) (*Node, error) {
	bin, err := pgbin.Dir()
	if err != nil {
		return nil, err
	}
	n := &Node{bin: bin}
	if os.Geteuid() == 0 {
		if n.User, err = Unprivileged(); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp(parent, "postgres-")
	if err == nil && n.User != nil {
		err = os.Chown(dir, int(n.User.Uid), int(n.User.Gid))
	}
	if err != nil {
		return nil, err
	}
	n.Dir = filepath.Join(dir, "data")
	for range 100 {
		// Below the ports that the system assigns by itself, so that a server that was
		// stopped finds it free again.
		n.Port = 15000 + rand.N(17000)
		var free net.Listener
		if free, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", n.Port)); err == nil { // it listens at once
			return n, free.Close()
		}
	}
	return nil, err
}

// Init makes a new cluster whose superuser is takt.
func (n *Node) Init() error {
	return n.run("initdb", "-D", n.Dir, "-U", "takt", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
}

// CopyOf makes the node a standby of the server at this port. Anything that it had is gone.
func (n *Node) CopyOf(port int, name string) error {
	if err := os.RemoveAll(n.Dir); err != nil {
		return err
	}
	return n.run("pg_basebackup", "-D", n.Dir, "-R", "-c", "fast", "--no-sync",
		"-d", fmt.Sprintf("host=127.0.0.1 port=%d user=takt application_name=%s", port, name))
}

// run runs a program of PostgreSQL as the server's user.
func (n *Node) run(program string, args ...string) error {
	out, err := n.command(filepath.Join(n.bin, program), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}

func (n *Node) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...) // it ends by itself, or with life
	cmd.Dir, cmd.Env = filepath.Dir(n.Dir), []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: n.User} // an interrupt at the terminal does not reach it
	return cmd
}

// Start runs the server. Settings are options of postgres, such as "-c", "wal_keep_size=64".
func (n *Node) Start(settings ...string) error {
	n.sh = n.command("/bin/sh", append([]string{"-c", `exec 3<&0 </dev/null >>"$2.log" 2>&1
b=$1 d=$2 p=$3; shift 3
"$b/postgres" -D "$d" -c listen_addresses=127.0.0.1 -p "$p" -k "" "$@" 3<&- &
read -r line <&3
kill -CONT $!
kill -QUIT $!
wait`, "sh", n.bin, n.Dir, strconv.Itoa(n.Port)}, settings...)...)
	var err error
	if n.life, err = n.sh.StdinPipe(); err != nil {
		return err
	}
	return n.sh.Start()
}

// Stop ends the server at once, as a crash would, also if it stands still.
func (n *Node) Stop() {
	if n.sh == nil {
		return
	}
	n.Signal(syscall.SIGCONT)
	_ = n.life.Close()
	_ = n.sh.Wait() // the exit status does not matter
	n.sh = nil
}

// Kill ends all processes of the server, as a power cut would. It waits for their end, because
// PostgreSQL refuses to start while one of them is left.
func (n *Node) Kill() {
	for n.Signal(syscall.SIGKILL) > 0 {
		<-time.After(time.Millisecond)
	}
	n.Stop()
}

// Signal sends a signal to the server and all its processes, which work in its directory, and
// returns how many there were.
func (n *Node) Signal(s syscall.Signal) (processes int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is right
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && at == n.Dir {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			_ = syscall.Kill(pid, s) // it may have ended
			processes++
		}
	}
	return processes
}

// URL is how to reach the node and no other.
func (n *Node) URL() string {
	return fmt.Sprintf("postgres://takt@127.0.0.1:%d/postgres?sslmode=disable", n.Port)
}

// Ask runs sql as soon as the node answers, and returns the first column of the first row.
func (n *Node) Ask(ctx context.Context, sql string) (result string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("no answer of PostgreSQL in time"))
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, n.URL())
		if err == nil {
			defer conn.Close(ctx) // nothing is lost with it
			err = conn.QueryRow(ctx, sql).Scan(&result)
			return result, err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s: %w: %w", sql, context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Exec runs statements that return nothing.
func (n *Node) Exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, n.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx) // nothing is lost with it
	_, err = conn.Exec(ctx, sql)
	return err
}

// Unprivileged returns the user that runs the server when this process is root, because
// the server refuses to run as root.
func Unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("running as root and there is neither a user postgres nor nobody")
}
