package database

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/store/backoff"
	"takt/store/storetest/needs"
	"takt/store/storetest/pgtest"
)

// helperEnv makes the test binary a takt in small that runs the embedded
// server in the directory it names, for tests that kill -9 it.
const helperEnv = "TAKT_DATABASE_TEST_SERVE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		serveUntilKilled(dir)
	}
	_ = flag.CommandLine.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))) // they mostly wait; an argument wins
	goleak.VerifyTestMain(suite{m})
}

// suite is all tests, with the directory that they share.
type suite struct{ *testing.M }

func (s suite) Run() int {
	dir, remove, err := pgtest.ScratchDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer remove()
	scratch = dir
	return s.M.Run()
}

var scratch string

// Tests whose clusters need not be new have copies of these, because initdb takes longer than
// most tests. Servers of copies do not sync: no test cuts the power.
var (
	madeCluster = sync.OnceValues(func() (string, error) {
		dir := filepath.Join(scratch, "made")
		cl, err := openCluster(context.Background(), NewPostgres(config(dir)).cfg, zerolog.Nop(), nil)
		if err != nil {
			return "", err
		}
		cl.close()
		return dir, os.WriteFile(filepath.Join(dir, clusterName, "postgresql.auto.conf"), []byte("fsync = off\n"), 0o600)
	})
	madeNode = sync.OnceValues(func() (*pgtest.Node, error) {
		n, err := pgtest.New(scratch)
		if err == nil {
			err = n.Init()
		}
		return n, err
	})
)

// directory returns a new directory in scratch. Unlike t.TempDir, the server's account may be
// let in.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// made returns a data directory with a cluster of its own whose server was stopped.
func made(t *testing.T) string {
	t.Helper()
	needs.Postgres(t)
	from := must(madeCluster())(t)
	dir := directory(t)
	copyTree(t, from+"/.", dir)
	return dir
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cp", "-Rp", from, to).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func serveUntilKilled(dir string) {
	sys := otp.New(otp.Options{Logger: zerolog.New(os.Stderr)})
	pg := NewPostgres(PostgresConfig{DataDir: dir, SearchPath: os.Getenv("PATH")})
	fmt.Println("begun")
	if _, err := sys.StartRoot(context.Background(), "takt", otp.SupSpec{Children: []otp.ChildSpec{pg.Spec()}}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

// startHelper starts a takt in small and waits until it has printed word.
func startHelper(t *testing.T, dir, word string) *exec.Cmd {
	t.Helper()
	needs.Postgres(t)
	self := must(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = append(os.Environ(), helperEnv+"="+dir)
	cmd.Stderr = t.Output()
	out := must(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	var seen bytes.Buffer
	buf := make([]byte, 256)
	for !bytes.Contains(seen.Bytes(), []byte(word)) {
		n, err := out.Read(buf)
		seen.Write(buf[:n])
		require.NoError(t, err, "the helper said: %s", seen.String())
	}
	return cmd
}

// kill9 kills the helper as kill -9 does and collects it.
func kill9(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // reports the kill
}

// fixture is a system of processes with an embedded server in it.
type fixture struct {
	sys *otp.System
	pg  *Postgres
	dir string
}

func logger(t *testing.T) zerolog.Logger {
	t.Helper()
	return zerolog.New(zerolog.ConsoleWriter{Out: t.Output(), NoColor: true, TimeFormat: "05.000"}).With().Timestamp().Logger()
}

func newSystem(t *testing.T) *otp.System {
	t.Helper()
	return newSystemLogging(t, logger(t))
}

func newSystemLogging(t *testing.T, log zerolog.Logger) *otp.System {
	t.Helper()
	sys := otp.New(otp.Options{Logger: log})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
		defer cancel()
		sys.Shutdown(ctx)
	})
	return sys
}

func config(dir string) PostgresConfig {
	return PostgresConfig{DataDir: dir, SearchPath: os.Getenv("PATH")}
}

// serve runs the embedded server, and the children after it, until the test ends.
func serve(t *testing.T, cfg PostgresConfig, after ...func(*Postgres) otp.ChildSpec) *fixture {
	t.Helper()
	b := &fixture{sys: newSystem(t), pg: NewPostgres(cfg), dir: cfg.DataDir}
	require.NoError(t, b.start(t, after...))
	return b
}

func (b *fixture) start(t *testing.T, after ...func(*Postgres) otp.ChildSpec) error {
	t.Helper()
	needs.Postgres(t)
	children := []otp.ChildSpec{b.pg.Spec()}
	for _, child := range after {
		children = append(children, child(b.pg))
	}
	begun := time.Now()
	_, err := b.sys.StartRoot(t.Context(), "database", otp.SupSpec{Strategy: otp.RestForOne, Children: children})
	t.Logf("start took %s", time.Since(begun).Round(time.Millisecond))
	return err
}

// stop ends the server in order.
func (b *fixture) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	b.sys.Shutdown(ctx)
}

// query runs sql, waiting out a restart.
func query(t *testing.T, pg *Postgres, sql string) string {
	t.Helper()
	var result string
	eventually(t, "the query "+sql, func() error {
		cfg, err := pg.ConnConfig(t.Context())
		if err != nil {
			return err
		}
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			return err
		}
		defer conn.Close(t.Context()) // a test's connection
		rows, err := conn.Query(t.Context(), sql)
		if err != nil {
			return err
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if len(texts) > 0 {
			result = texts[0]
		}
		return err
	})
	return result
}

// eventually polls until f succeeds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		require.NoError(t, backoff.Pause(ctx, 10*time.Millisecond), "waiting for %s: %v", what, err)
	}
}

// soon polls until the condition holds.
func soon(t *testing.T, what string, condition func() bool) {
	t.Helper()
	eventually(t, what, func() error {
		if condition() {
			return nil
		}
		return fmt.Errorf("not yet")
	})
}

func clusterInfo(t *testing.T, dir string) os.FileInfo {
	t.Helper()
	return must(os.Stat(filepath.Join(dir, clusterName)))(t)
}

// serverPID returns the running server's process.
func serverPID(t *testing.T, dir string) int {
	t.Helper()
	text := must(os.ReadFile(filepath.Join(dir, clusterName, pidFileName)))(t)
	lock := parsePIDFile(string(text))
	require.Equal(t, server, identify(lock.PID, clusterInfo(t, dir)), "process "+strconv.Itoa(lock.PID))
	return lock.PID
}

// killServer kills a server that the test started.
func killServer(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, syscall.Kill(serverPID(t, dir), syscall.SIGKILL))
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
