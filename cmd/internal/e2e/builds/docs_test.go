package builds

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/command"
	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/client"
	"takt/http/githubtest"
	"takt/store"
	"takt/store/storetest/needs"
)

func TestDocsShellWorkerBuilds(t *testing.T) {
	t.Parallel()
	needs.Curl(t)
	needs.JQ(t)
	script, err := filepath.Abs(takttest.File("docs", "worker.sh"))
	require.NoError(t, err)
	text, err := os.ReadFile(script)
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(text, []byte("\n")), 135)

	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	good, bad := []byte("precious \x00 bytes"), []byte("broken")
	id := takttest.Submit(t, c, good)
	failing := takttest.Submit(t, c, bad)

	worker := exec.CommandContext(t.Context(), "bash", script, `echo "a \"quoted\" line"; eval "echo \"${BUILD_PRINT-}\""; sleep "${BUILD_SLEEP-0}"; ! grep -q broken "$SOURCE" && cp "$SOURCE" "$OUTPUT"`)
	worker.Env = env.Environment("TAKT_URL="+c.URL, "TAKT_API_KEY="+c.APIKey, "WORKER_ID=shell", "TMPDIR="+t.TempDir())
	var said bytes.Buffer
	worker.Stdout, worker.Stderr = &said, &said
	worker.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its curl can be ended too
	worker.Cancel = func() error { return syscall.Kill(-worker.Process.Pid, syscall.SIGKILL) }
	worker.WaitDelay = 10 * time.Second
	require.NoError(t, worker.Start())

	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
	require.Equal(t, string(good), takttest.Download(t, c, id))
	logs, err := c.Client.Logs(t.Context(), id, client.BuildAuth{}, client.LogsAfter{})
	require.NoError(t, err)
	require.Contains(t, takttest.Messages(logs), `a "quoted" line`)
	takttest.Eventually(t, "the other build fails", func() bool { return takttest.Status(t, c, failing).Status == string(store.Failed) })
	require.Equal(t, "the command failed", *takttest.Status(t, c, failing).ErrorMessage)

	require.Equal(t, 1, *takttest.Status(t, c, failing).Ended.ExitCode)

	with := func(p store.Params, timeout time.Duration) string {
		b, err := c.Client.Submit(t.Context(), client.Submit{
			Platform: store.Android, Source: client.Bytes(good), Labels: store.Labels{"a/b": "c"}, Inputs: store.Inputs{Params: p, Timeout: timeout, Facts: store.Facts{Commit: "0123abcd"}},
		})
		require.NoError(t, err)
		return b.ID
	}
	prints := with(store.Params{"BUILD_PRINT": "two\nlines of $TAKT_LABEL_A_B at $TAKT_COMMIT"}, 0)
	refused, long := with(store.Params{"API_URL": "x"}, 0), with(store.Params{"BUILD_SLEEP": "1000"}, time.Second)
	takttest.Eventually(t, "the builds end", func() bool {
		return takttest.Status(t, c, prints).Status == string(store.Completed) && takttest.Status(t, c, refused).Status == string(store.Failed) &&
			takttest.Status(t, c, long).Status == string(store.Failed)
	})
	logs, err = c.Client.Logs(t.Context(), prints, client.BuildAuth{}, client.LogsAfter{})
	require.NoError(t, err)
	require.Contains(t, strings.Join(takttest.Messages(logs), "\n"), "two\nlines of c at 0123abcd")
	require.Contains(t, *takttest.Status(t, c, refused).ErrorMessage, "parameter API_URL is not one that this worker's ACCEPT_ENV takes")
	require.True(t, takttest.Status(t, c, long).Ended.TimedOut)

	require.NoError(t, syscall.Kill(-worker.Process.Pid, syscall.SIGTERM))
	require.NoError(t, worker.Wait(), said.String())
	list, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
	require.NoError(t, err)
	require.Equal(t, "offline", list.Workers[0].Status, "it unregisters at its end")
}

// The shell worker and all that it has started, also its heartbeats, end with the worker
// and with a cancelled build; one that was killed gives its build back when it starts.
func TestDocsShellWorkerLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	needs.Curl(t)
	script, err := filepath.Abs(takttest.File("docs", "worker.sh"))
	require.NoError(t, err)
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	pids := filepath.Join(t.TempDir(), "pids-") // of the command and its child, by the build's source
	marker := "WORKER_ID=" + store.NewID()
	start := func() *exec.Cmd {
		worker := exec.CommandContext(t.Context(), "bash", script, `sleep 1000 & echo $$ $! >`+pids+`$(cat "$SOURCE"); wait`)
		worker.Env = env.Environment("TAKT_URL="+c.URL, "TAKT_API_KEY="+c.APIKey, marker, "BEAT=0.2", "TMPDIR="+t.TempDir())
		worker.Stdout, worker.Stderr = t.Output(), t.Output()
		worker.WaitDelay = takttest.Patience
		require.NoError(t, worker.Start())
		return worker
	}
	// left counts the processes that a worker has started, and itself.
	left := func() (n int) {
		all, err := filepath.Glob("/proc/[0-9]*/environ")
		require.NoError(t, err)
		for _, path := range all {
			if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(marker)) {
				n++
			}
		}
		return n
	}
	t.Cleanup(func() {
		all, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, path := range all {
			if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(marker)) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	runs := func(id, source string, attempt int) {
		t.Helper()
		takttest.Eventually(t, "the build runs", func() bool {
			now := takttest.Status(t, c, id)
			_, err := os.Stat(pids + source)
			return now.Status == "building" && now.Attempt == attempt && err == nil
		})
	}
	gone := func(source string) {
		t.Helper()
		raw, err := os.ReadFile(pids + source)
		require.NoError(t, err)
		for pid := range strings.FieldsSeq(string(raw)) {
			takttest.Eventually(t, "process "+pid+" ends", func() bool {
				_, err := os.Stat("/proc/" + pid)
				return err != nil
			})
		}
	}

	cancelled, next := takttest.Submit(t, c, []byte("one")), takttest.Submit(t, c, []byte("two"))
	worker := start()
	runs(cancelled, "one", 1)
	takttest.Cancel(t, c, cancelled)
	gone("one")
	runs(next, "two", 1)

	require.NoError(t, worker.Process.Kill())
	_ = worker.Wait() // killed
	require.NoError(t, os.Remove(pids+"two"))
	worker = start()
	runs(next, "two", 2)

	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	require.NoError(t, worker.Wait())
	gone("two")
	takttest.Eventually(t, "nothing is left", func() bool { return left() == 0 })
	require.Equal(t, "pending", takttest.Status(t, c, next).Status)
}

// TestDocsCommandsRun runs every command of README and docs/ that is not marked
// as not to be run, as they stand there, against a takt.
func TestDocsCommandsRun(t *testing.T) {
	t.Parallel()
	needs.Curl(t)
	root, err := filepath.Abs(takttest.File())
	require.NoError(t, err)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	served := regexp.MustCompile(`serve --data-dir \S+ --platforms (\S+)`).FindSubmatch(makefile)
	require.NotNil(t, served, "make run")
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_PLATFORMS="+string(served[1]))
	run := shellOf(t, env, c)
	ran := 0
	for _, b := range takttest.ShellBlocks(t) {
		if b.NotRun != "" {
			continue
		}
		ran++
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS(filepath.Join(root, "testdata"))))
		require.NoError(t, os.CopyFS(filepath.Join(dir, "docs"), os.DirFS(filepath.Join(root, "docs"))))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "deploy"), 0o700))
		require.NoError(t, os.MkdirAll(filepath.Join(dir, ".cache", "run"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".cache", "run", "api-key"), []byte(c.APIKey+"\n"), 0o600))

		run(b.Page, dir, b.Text+"\nwait\n")
	}
	require.Positive(t, ran)
}

// shellOf returns what runs a script in a directory, with this program as takt and bin/takt.
func shellOf(t *testing.T, env *takttest.Env, c *process.Controller) func(page, dir, script string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(self, filepath.Join(bin, "takt")))
	return func(page, dir, script string) {
		t.Helper()
		require.NoError(t, os.Symlink(bin, filepath.Join(dir, "bin")))
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*takttest.Patience, context.DeadlineExceeded)
		defer cancel()
		shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-m", "-c", script)
		shell.Dir = dir
		shell.Env = env.Environment("TAKT_URL="+c.URL, "TAKT_API_KEY="+c.APIKey, "TAKT_ADMIN_KEY="+c.AdminKey, "TAKT_GITHUB_TOKEN="+githubtest.Token,
			"DATA_DIR="+c.DataDir, "PATH="+bin+":"+os.Getenv("PATH"), "XDG_STATE_HOME="+filepath.Join(dir, "state"))
		out, err := shell.CombinedOutput()
		require.NoError(t, err, "%s:\n%s\n%s", page, script, out)
	}
}

// TestCommandsOfPagesRun runs every command that a page of the dashboard shows, as it stands
// there but for keys and names.
func TestCommandsOfPagesRun(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	_, settings := takttest.NewForge(t, 1)
	c := env.StartController("takt", settings...)
	run := shellOf(t, env, c)
	pages, err := filepath.Glob(takttest.File("http", "dashboard", "html", "*.html"))
	require.NoError(t, err)
	known := strings.NewReplacer("{{$.View.Host}}", c.URL, "{{.View.Host}}", c.URL, "TAKT_API_KEY=… ", "", "my-org", "from", "my-mirror", "to")
	ran := map[string]bool{}
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`<code>([^<]*\btakt [^<]*)</code>`).FindAllStringSubmatch(string(raw), -1) {
			script := known.Replace(m[1])
			if ran[script] {
				continue
			}
			ran[script] = true
			require.NotContains(t, script, "{{", "%s: what this test does not know", page)
			dir := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(dir, "app"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "app", "main"), []byte("x"), 0o600))
			if strings.Contains(script, "takt worker ") { // it runs until it is stopped
				script += ` & until takt workers | grep -q idle; do sleep 0.1; done; kill %1; wait %1`
			}
			run(page, dir, script)
		}
	}
	require.GreaterOrEqual(t, len(ran), 4)
}

// TestDocsCommandsThatAreNotRunExist looks at least whether their commands and
// flags, and make's targets, are known.
func TestDocsCommandsThatAreNotRunExist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(takttest.File("Makefile"))
	require.NoError(t, err)
	for _, b := range takttest.ShellBlocks(t) {
		for line := range strings.Lines(b.Text) {
			line, _, _ = strings.Cut(line, " #")
			words := strings.Fields(strings.ReplaceAll(line, "'", ""))
			for len(words) > 0 && strings.Contains(words[0], "=") { // assignments
				words = words[1:]
			}
			if len(words) < 2 {
				continue
			}
			switch strings.TrimPrefix(words[0], "bin/") {
			case "make":
				require.Contains(t, string(makefile), "\n"+words[1]+":", b.Page)
			case "takt":
				cmd, rest, err := command.New(takttest.Environment()).Find(words[1:])
				require.NoError(t, err, line)
				require.True(t, cmd.HasParent(), "%s: there is no %q", b.Page, line)
				for _, word := range rest {
					if name, ok := strings.CutPrefix(word, "--"); ok {
						name, _, _ = strings.Cut(name, "=")
						require.NotNil(t, cmd.Flags().Lookup(name), "%s: %s has no --%s", b.Page, cmd.CommandPath(), name)
					}
				}
			}
		}
	}
}

func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(takttest.File("README.md"))
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(raw, []byte("\n")), 120)
}
