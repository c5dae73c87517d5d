package database

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store/postgres"
	"takt/store/storetest/needs"
)

// node is a PostgreSQL server at a port of the loopback interface.
type node struct {
	dir  string
	port int
}

// url is how to reach the node and no other.
func (n node) url() string {
	return fmt.Sprintf("postgres://takt@127.0.0.1:%d/postgres?sslmode=disable", n.port)
}

// runNode runs a script that makes the node's cluster in $2 with the programs in $1, and then
// the server until the test ends, or the test's process.
func runNode(t *testing.T, script string, args ...string) node {
	t.Helper()
	needs.Server(t, "PostgreSQL")
	needs.Linux(t) // for its /proc, which finds the processes of a server
	found, err := findBinaries(t.Context(), os.Getenv("PATH"), wellKnown())
	require.NoError(t, err)
	require.NotEmpty(t, found)
	bins := found[0]
	account, err := chooseOwner(os.Geteuid(), os.Getegid(), nil, user.Lookup)
	require.NoError(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	parent, err := os.MkdirTemp("", "takt-node-") //nolint:usetesting // t.TempDir is closed to the server's account
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	require.NoError(t, os.Chown(parent, int(account.uid), int(account.gid)))
	n := node{dir: filepath.Join(parent, "data"), port: free.Addr().(*net.TCPAddr).Port} //nolint:forcetypeassert // it listens on TCP
	require.NoError(t, free.Close())
	script = `exec 3<&0 </dev/null >"$2.log" 2>&1
` + script + ` || exit
"$1/postgres" -D "$2" -c listen_addresses=127.0.0.1 -p "$3" -k "" -c fsync=off 3<&- &
read -r line <&3
kill -CONT $!
kill -QUIT $!
wait`
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh",
		append([]string{"-c", script, "sh", bins.Dir, n.dir, fmt.Sprint(n.port)}, args...)...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = parent, environment(bins), processAttributes(account)
	life, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		n.signal(t, syscall.SIGCONT)
		_ = life.Close()
		_ = cmd.Wait() // the exit status does not matter
	})
	return n
}

// signal sends a signal to the server and all its processes.
func (n node) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	info, err := os.Stat(n.dir)
	require.NoError(t, err)
	for _, pid := range serversIn(info) {
		_ = syscall.Kill(pid, s) // it may have ended
	}
}

// run runs sql at the node once it answers, and returns the first column of the first row.
func (n node) run(t *testing.T, sql string) (result string) {
	t.Helper()
	eventually(t, sql, func() error {
		conn, err := pgx.Connect(t.Context(), n.url())
		if err != nil {
			return err
		}
		defer conn.Close(t.Context()) //nolint:errcheck // a test's connection
		return conn.QueryRow(t.Context(), sql).Scan(&result)
	})
	return result
}

// The primary stands still, and its standby is promoted. takt serves from there, whichever
// of the two the URL names first.
func TestAPrimaryThatHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		primaryFirst bool
		atOnce       bool // the standby is promoted before takt has noticed
	}{
		"named first":                   {primaryFirst: true},
		"named first, promoted at once": {primaryFirst: true, atOnce: true},
		"named second":                  {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := runNode(t, `"$1/initdb" -D "$2" -U takt --auth=trust --no-sync`)
			primary.run(t, "SELECT 1::text")
			standby := runNode(t, `"$1/pg_basebackup" -D "$2" -h 127.0.0.1 -p "$4" -U takt -R -c fast --no-sync`, fmt.Sprint(primary.port))
			soon(t, "the standby to stream", func() bool {
				return primary.run(t, "SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming' AND application_name = 'walreceiver'") == "1"
			})
			first, second := standby, primary
			if c.primaryFirst {
				first, second = primary, standby
			}
			source, err := URL(fmt.Sprintf("postgres://takt@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", first.port, second.port))
			require.NoError(t, err)
			db, bus := postgres.New(), pubsub.New()
			events := make(chan pubsub.Event, 100)
			defer bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.JobAvailable, pubsub.ListenerResumed)()
			listener := NewListener(ListenerConfig{Source: source, Bus: bus})
			pool := NewPool(PoolConfig{Source: source, Sinks: []Sink{db, listener}})
			db.OnLost(pool.Lost)
			sys := newSystem(t)
			_, err = sys.StartRoot(t.Context(), "database", otp.SupSpec{
				Strategy: otp.RestForOne, Children: []otp.ChildSpec{pool.Spec(), listener.Spec()},
			})
			require.NoError(t, err)
			serves := func() error {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("no answer"))
				defer cancel()
				return db.Ping(ctx)
			}
			require.NoError(t, serves())
			heard := func(topic string) {
				soon(t, topic, func() bool {
					select {
					case e := <-events:
						return e.Topic == topic
					default:
						return false
					}
				})
			}
			heard(pubsub.ListenerResumed)

			primary.signal(t, syscall.SIGSTOP)
			if !c.atOnce {
				soon(t, "takt to notice", func() bool { return serves() != nil && !pool.Ready() })
			}
			standby.run(t, "SELECT pg_promote()::text")
			promoted := time.Now()
			eventually(t, "takt to serve", serves)
			t.Logf("takt served %s after the promotion", time.Since(promoted).Round(time.Millisecond))
			require.Zero(t, sys.Leaked())
			heard(pubsub.ListenerResumed)
			t.Logf("and listened after %s", time.Since(promoted).Round(time.Millisecond))
			standby.run(t, "SELECT pg_notify('takt', 'job:available ios')::text")
			heard(pubsub.JobAvailable)
		})
	}
}

func TestHostsOfAURL(t *testing.T) {
	t.Parallel()
	source, err := URL("postgres://me@one:1,two:2/builds?sslmode=prefer")
	require.NoError(t, err)
	cfg, err := source(t.Context())
	require.NoError(t, err)
	require.NotNil(t, cfg.ValidateConnect, "the host has to take writes")
	all := hosts(cfg)
	require.Len(t, all, 2)
	for i, host := range []string{"one", "two"} {
		require.Equal(t, host, all[i].Host)
		require.EqualValues(t, i+1, all[i].Port)
		require.NotNil(t, all[i].TLSConfig)
		require.Len(t, all[i].Fallbacks, 1, "the same host without TLS")
		require.Equal(t, host, all[i].Fallbacks[0].Host)
	}
	source, err = URL("postgres://me@one/builds")
	require.NoError(t, err)
	cfg, err = source(t.Context())
	require.NoError(t, err)
	require.Nil(t, cfg.ValidateConnect)
}
