package operating

import (
	"bufio"
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/needs"
	"takt/store/storetest/tied"
)

// TestServeOnATerminal starts takt as a person does, and stops it as one does.
func TestServeOnATerminal(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	dir := filepath.Join(env.Dir, "data")
	cmd := exec.Command(env.Takt, "serve")
	cmd.Env = env.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=info", "TERM=dumb")
	terminal, err := pty.Start(cmd)
	require.NoError(t, err)
	defer func() { _ = terminal.Close() }()
	var text, address string
	for lines := bufio.NewReader(terminal); err == nil; { // the last read fails: takt is gone
		var line string
		line, err = lines.ReadString('\n')
		text += line
		if strings.Contains(line, "export TAKT_URL=") {
			address = process.ReadWord(filepath.Join(dir, "address"))
			_, err = terminal.Write([]byte{3}) // Ctrl-C
		}
	}
	require.NoError(t, cmd.Wait(), text)
	require.NotContains(t, text, `{"level"`)
	require.Contains(t, text, "tls=false")
	require.Contains(t, text, "takt serves at http://"+address)
	require.Contains(t, text, "API key    "+filepath.Join(dir, "api-key"))
	require.Contains(t, text, "export TAKT_URL=http://"+address+" TAKT_API_KEY=$(cat "+filepath.Join(dir, "api-key")+")")
}

// TestANormalStopLogsNoError looks at all that takt says from its start to its end.
func TestANormalStopLogsNoError(t *testing.T) {
	t.Parallel()
	needs.Files(t, 4096) // with fewer it warns
	env := takttest.NewEnv(t)
	dir := filepath.Join(env.Dir, "data")
	cmd := exec.Command(env.Takt, "serve")
	cmd.Env = env.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=warn", "TAKT_MAX_PARKED=100")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wait, err := tied.Start(cmd)
	require.NoError(t, err)
	takttest.Eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, wait(), out.String())
	// PostgreSQL tells what took it a second, as it may on a busy machine.
	slow := regexp.MustCompile(`(?m)^.*"from":"postgres".*"message":"duration: \d{4,}\.\d+ ms  .*\n`)
	require.Empty(t, slow.ReplaceAllString(out.String(), ""))
}

// TestServeRaisesAndTellsTheLimitOfFiles starts takt with a soft limit that would
// not do for its database.
func TestServeRaisesAndTellsTheLimitOfFiles(t *testing.T) {
	t.Parallel()
	needs.Files(t, 4096)
	env := takttest.NewEnv(t)
	dir := filepath.Join(env.Dir, "data")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -n 4096; ulimit -Sn 256; exec "$0" serve`, env.Takt)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = env.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=warn", "TAKT_MAX_PARKED=20000")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wait, err := tied.Start(cmd)
	require.NoError(t, err)
	takttest.Eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	cancel(nil)
	_ = wait() // it says that the context ended
	require.True(t, cmd.ProcessState.Success(), out.String())
	require.Regexp(t, `"file_descriptors":409[56],"connections":3072,"needed":40000`, out.String()) // Go leaves one out
}

// TestFilesAreTaktsOwnWhateverTheUmask starts takt with a umask that takes
// nothing away: what it makes is closed to others all the same.
func TestFilesAreTaktsOwnWhateverTheUmask(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	dir := filepath.Join(env.Dir, "data")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, "sh", "-c", `umask 000; exec "$0" serve`, env.Takt)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = env.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=error")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wait, err := tied.Start(cmd)
	require.NoError(t, err)
	takttest.Eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	c, err := client.New(client.Config{
		BaseURL: "http://" + process.ReadWord(filepath.Join(dir, "address")), APIKey: process.ReadWord(filepath.Join(dir, "api-key")),
	})
	require.NoError(t, err)
	defer c.CloseIdle()
	source := client.Bytes([]byte("source"))
	var sub api.Submitted
	takttest.Eventually(t, "takt takes a build", func() bool { // its new database may be slow
		sub, err = c.Submit(t.Context(), client.Submit{Platform: store.IOS, Source: source, Certs: &source})
		return err == nil
	})
	require.FileExists(t, filepath.Join(dir, "files", "builds", sub.ID, "certs.zip"))

	seen := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) { // a file of the database server that just went
			return nil
		}
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && d.Type()&fs.ModeSymlink == 0 && d.Type()&fs.ModeSocket == 0 && d.Name() != "address" {
			seen++
			require.Zero(t, info.Mode().Perm()&0o077, "%s: %s", path, info.Mode())
		}
		return nil
	}))
	require.Greater(t, seen, 20)
	cancel(nil)
	_ = wait() // it says that the context ended
	require.True(t, cmd.ProcessState.Success(), out.String())
}

func poolNamed(t *testing.T, l api.Heijunka, name string) store.HeijunkaPool {
	t.Helper()
	for _, p := range l.Pools {
		if p.Name == name {
			return p
		}
	}
	require.Fail(t, "no pool "+name)
	return store.HeijunkaPool{}
}

func TestLoadIsLevelledSeenAndChanged(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	ctx := t.Context()
	_, err := c.Client.List(ctx, client.Filter{})
	require.NoError(t, err)
	l := takttest.Call(t, c, api.ShowHeijunka, api.None{})
	require.Equal(t, 1200, l.Regulator.HardLimit)
	require.Positive(t, l.Regulator.Accepted)
	require.Positive(t, poolNamed(t, l, "query").Processed)

	// Parked polls hold neither token nor slot.
	const parked = 20
	answered := make(chan error, parked)
	for range parked {
		w := takttest.Register(t, c, 1)
		go func() {
			_, err := c.Client.Poll(ctx, client.Poll{Token: w.Token, Wait: 20 * time.Second})
			answered <- err
		}()
	}
	takttest.Eventually(t, "the polls have parked", func() bool {
		plan, err := c.Client.Plan(ctx, client.Order{Action: "restart", Path: "heijunka"})
		require.NoError(t, err)
		l = takttest.Call(t, c, api.ShowHeijunka, api.None{})
		return plan.Requests == parked && l.Regulator.Load == 0
	})
	require.Zero(t, poolNamed(t, l, "fleet").Busy)

	// What an operator changes holds over a restart of the process, until it is taken back.
	one, half := 2, 0.5
	takttest.Call(t, c, api.ChangeHeijunkaLimits, api.HeijunkaLimits{HardLimit: &one, SoftLimit: &one, Reserved: &half, For: "2h", Reason: "test"})
	l = takttest.Call(t, c, api.ShowHeijunka, api.None{})
	require.Equal(t, 1, l.Regulator.RegularLimit)
	require.Contains(t, string(l.Changed), `"until"`)
	require.NoError(t, c.Stop(ctx, takttest.Patience))
	for range parked {
		require.NoError(t, <-answered)
	}
	c = env.StartController("takt")
	takttest.Eventually(t, "the limits are in force again", func() bool {
		l, err := client.Call(ctx, c.Client, api.ShowHeijunka, api.None{})
		return err == nil && l.Regulator.HardLimit == 2
	})
	l = takttest.Call(t, c, api.ChangeHeijunkaLimits, api.HeijunkaLimits{Reset: true, Reason: "test is over"})
	require.Equal(t, 1200, l.Regulator.HardLimit)
}
