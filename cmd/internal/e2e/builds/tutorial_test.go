package builds

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/tied"
)

// differing is what two runs do not have in common.
var differing = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`[A-Za-z0-9_-]{21}`), "ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:]+Z`), "WHEN"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d`), "TIME"},
	{regexp.MustCompile(`\b[\d.]+m?s\b`), "DURATION"},
	{regexp.MustCompile(`\d+ B of source`), "SIZE of source"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b\d+%`), "-"}, // telemetry may have come already
	{regexp.MustCompile(`warning: load average.*`), "healthy"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

func alike(text string) string {
	for _, d := range differing {
		text = d.re.ReplaceAllString(text, d.with)
	}
	return strings.TrimSpace(text)
}

// The commands of the page are run in their order, and print what it shows.
func TestTutorialShowsWhatCommandsPrint(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(takttest.File("docs", "tutorial.md"))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```(console|text)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	dir, bin := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(env.Takt, filepath.Join(bin, "takt")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "app"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "app", "main.txt"), []byte("hello world\n"), 0o600))
	names := strings.NewReplacer("$TAKT_URL", c.URL)
	for _, b := range blocks {
		if b[1] == "text" {
			if strings.Contains(b[2], "TAKT_OUTPUT") { // the script
				require.NoError(t, os.WriteFile(filepath.Join(dir, "app", "build.sh"), []byte(b[2]), 0o600))
			}
			continue
		}
		for step := range strings.SplitSeq(strings.TrimPrefix(b[2], "$ "), "\n$ ") {
			command, want, _ := strings.Cut(step, "\n")
			switch {
			case strings.Contains(command, "--listen"): // the builds, keys and workers are kept
				require.NoError(t, c.Stop(t.Context(), takttest.Patience))
				c = env.StartController("takt", "TAKT_LISTEN="+strings.TrimPrefix(c.URL, "http://"))
				continue
			case strings.HasPrefix(command, "takt serve"):
				continue
			case strings.Contains(command, "http://controller:3000"):
				secondMachine(env, c, bin, command)
				continue
			case strings.HasPrefix(command, "for n in 1 2"): // the page's three seconds may be over before both run
				together := filepath.Join(dir, "together")
				script := "until [ -e '" + together + "' ]; do sleep 0.1; done; touch \"$TAKT_OUTPUT\"\n"
				require.NoError(t, os.WriteFile(filepath.Join(dir, "app", "build.sh"), []byte(script), 0o600))
				defer func() { require.NoError(t, os.WriteFile(together, nil, 0o600)) }() // before the workers stop
			case strings.HasPrefix(command, "takt worker "):
				_, exec, _ := strings.Cut(command, "--exec '")
				first := env.StartWorker(c, "mini-01", strings.TrimSuffix(exec, "'"))
				defer func() { require.NoError(t, first.Stop(context.WithoutCancel(t.Context()), takttest.Patience)) }() // before the controller
				list, err := c.Client.List(t.Context(), client.Filter{})
				require.NoError(t, err)
				takttest.Eventually(t, "the first build is taken", func() bool { return takttest.Status(t, c, list[0].ID).State != string(store.Pending) })
				continue
			}
			var got []byte
			run := func() bool {
				run := exec.CommandContext(t.Context(), "bash", "-c", names.Replace(command))
				run.Dir = dir
				run.Env = env.Environment("PATH="+bin+":"+os.Getenv("PATH"), "TAKT_URL="+c.URL, "TAKT_API_KEY="+c.APIKey, "TAKT_ADMIN_KEY="+c.AdminKey, "XDG_STATE_HOME="+dir)
				got, err = run.CombinedOutput()
				return err == nil && alike(want) == alike(string(got))
			}
			if !run() && command == "takt workers" { // workers register and take builds when they can
				takttest.Eventually(t, "takt workers shows what the page does", run)
			}
			require.NoError(t, err, "%s: %s", command, got)
			// What it waits for is up to two seconds old: the controller may not have seen the worker yet.
			waits := regexp.MustCompile(`(?m)^.*: pending\. .*\n?`)
			want, got = waits.ReplaceAllString(want, ""), waits.ReplaceAll(got, nil)
			require.Equal(t, alike(want), alike(string(got)), command)
			if strings.HasPrefix(command, "takt submit") { // its id on the page is this one from now on
				told, made := strings.SplitN(want, "\n", 2)[0], strings.SplitN(string(got), "\n", 2)[0]
				if strings.Contains(command, "branch=main") {
					names = strings.NewReplacer("$TAKT_URL", c.URL, told[:4], made[:4])
				}
			}
		}
	}
}

// secondMachine runs the command of a worker with a directory, home and environment of its
// own. It reaches the controller by another address and knows nothing but the API key's file.
func secondMachine(env *takttest.Env, c *process.Controller, bin, command string) {
	env.T.Helper()
	address := "127.0.0.1:0"
	if runtime.GOOS == "linux" {
		address = "127.0.0.2:0"
	}
	ln, err := net.Listen("tcp", address)
	require.NoError(env.T, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(c.URL, "http://"))
			if err != nil {
				near.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				conns.Go(func() {
					_, _ = io.Copy(way[0], way[1]) // until either side closes
					near.Close()
					far.Close()
				})
			}
		}
	})
	home := env.T.TempDir()
	require.NoError(env.T, os.WriteFile(filepath.Join(home, "api-key"), []byte(c.APIKey+"\n"), 0o600))
	worker := exec.Command("bash", "-c", strings.NewReplacer("takt worker", "exec takt worker", "controller:3000", ln.Addr().String()).Replace(command))
	worker.Dir = home
	worker.Env = slices.Concat(env.Settings, []string{"PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + home})
	var said bytes.Buffer
	worker.Stdout, worker.Stderr = &said, &said
	wait, err := tied.Start(worker)
	require.NoError(env.T, err)
	env.T.Cleanup(func() {
		require.NoError(env.T, worker.Process.Signal(syscall.SIGTERM))
		require.NoError(env.T, wait(), "%s", &said)
		require.NoError(env.T, ln.Close())
		conns.Wait()
	})
}
