package operating

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	"github.com/gdamore/tcell/v3/vt"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
)

// watcher is somebody at a terminal of a real pseudo terminal, in which takt top runs.
type watcher struct {
	t    *testing.T
	pty  *os.File
	term vt.MockTerm
	cmd  *exec.Cmd

	mu     sync.Mutex
	raw    bytes.Buffer // all that was written to it; guarded by mu
	copied sync.WaitGroup
	ended  chan error // how takt top ended
}

func watch(t *testing.T, env *takttest.Env, settings ...string) *watcher {
	t.Helper()
	w := &watcher{t: t, term: vt.NewMockTerm(vt.MockOptSize{X: 80, Y: 24}), cmd: exec.Command(env.Takt, "top"), ended: make(chan error, 1)}
	w.cmd.Env = env.Environment(append([]string{"TERM=xterm-256color"}, settings...)...)
	require.NoError(t, w.term.Start())
	var err error
	w.pty, err = pty.StartWithSize(w.cmd, &pty.Winsize{Rows: 24, Cols: 80})
	require.NoError(t, err)
	w.copied.Go(func() { _, _ = io.Copy(io.MultiWriter(w.term, w), w.pty) }) // ends with an error when takt is gone
	w.copied.Go(func() { _, _ = io.Copy(w.pty, w.term) })                    // what the terminal answers
	go func() { w.ended <- w.cmd.Wait() }()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill() // gone already, unless the test has failed
		_ = w.term.Stop()
		_ = w.pty.Close()
		w.copied.Wait()
	})
	return w
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.raw.Write(p)
}

func (w *watcher) written() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.raw.String()
}

// lines returns what is on the screen.
func (w *watcher) lines() (lines []string) {
	size, err := w.term.WindowSize()
	require.NoError(w.t, err)
	for y := range size.Height {
		var line strings.Builder
		for x := range size.Width {
			c := w.term.GetCell(vt.Coord{X: vt.Col(x), Y: vt.Row(y)}).C
			if c == "" {
				c = " "
			}
			line.WriteString(c)
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

// sees waits until a pattern is on the screen.
func (w *watcher) sees(pattern string) {
	w.t.Helper()
	want := regexp.MustCompile(`(?m)` + pattern)
	defer func() {
		if w.t.Failed() {
			w.t.Logf("no %q on the screen:\n%s", pattern, strings.Join(w.lines(), "\n"))
		}
	}()
	takttest.Eventually(w.t, pattern, func() bool { return want.MatchString(strings.Join(w.lines(), "\n")) })
}

func (w *watcher) types(keys string) {
	w.t.Helper()
	_, err := io.WriteString(w.pty, keys)
	require.NoError(w.t, err)
}

func (w *watcher) resize(columns, rows int) {
	w.t.Helper()
	// In this order, as terminals do it: the report of a new size makes takt read it.
	require.NoError(w.t, pty.Setsize(w.pty, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}))
	w.term.SetSize(vt.Coord{X: vt.Col(columns), Y: vt.Row(rows)})
}

// leaves quits and looks at how takt top ends.
func (w *watcher) leaves() {
	w.t.Helper()
	w.types("q")
	require.NoError(w.t, <-w.ended)
	takttest.Eventually(w.t, "the screen from before is back", func() bool { return strings.Contains(w.written(), "\x1b[?1049l") })
}

// colour matches what sets a colour of text (ECMA-48, SGR 30 to 38).
var colour = regexp.MustCompile(`\x1b\[(?:[0-9;:]*;)?3[0-8][0-9;:]*m`)

func TestTopShowsAndActs(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	settings := []string{"TAKT_URL=" + c.URL, "TAKT_API_KEY=" + c.APIKey, "TAKT_ADMIN_KEY=" + c.AdminKey}
	w := watch(t, env, settings...)
	w.sees(`^queue  0 wait; 0 run; 0 workers online$`)

	// What happens is seen.
	h := takttest.Register(t, c, 2)
	takttest.Submit(t, c, []byte("one"))
	id := takttest.Submit(t, c, []byte("two"))
	w.sees(`^queue  2 wait, the oldest for \d+s; 0 run; 1 worker online$`)
	w.sees(`^load   normal, \d+ of 1200 admitted, [\d.]+ requests/s`)
	w.sees(`^tree   \d+ parts; the busiest is takt/`)
	w.sees(`^rates  [1-9][\d.]* submitted, 0.0 completed a minute; 0 of 0 failed in the last hour$`)
	w.sees(`^fake +idle +0/2 +- +0 +0 +\d+s$`)
	w.types("2")
	w.sees(`^` + id + ` +android +pending +\d+s +A slot is free: the next`)
	w.types("/two-is-not-there\r")
	w.sees(`3 tree   0 with "two-is-not-there"`)
	w.types("\x1b")
	w.sees(`^` + id)

	// A worker is drained with a reason, after confirmation.
	w.types("1d")
	w.sees(`^why drain fake\?\nEnter go on`)
	w.types("it is warn\x7fm\r")
	w.sees(`^drain fake: it gets no more builds and finishes those that it has\ny do it`)
	w.types("n")
	w.types("dagain, it is warm\ry")
	w.sees(`drain fake: done$`)
	w.sees(`^fake +idle, draining +0/2`)
	worker := takttest.Call(t, c, api.ShowWorker, api.WorkerPath{ID: api.WorkerID(h.ID)})
	require.True(t, worker.Draining)
	audit, err := c.Client.Audit(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, audit.Entries, 1, "what was not confirmed was not done")
	require.Equal(t, []string{"drain", "worker/" + h.ID, "again, it is warm"}, []string{audit.Entries[0].Action, audit.Entries[0].Target, audit.Entries[0].Reason})

	// The tree is sorted, and a part of it restarted.
	w.types("3ssss") // from BUSY on
	w.sees(`^PART-.*\ntakt/throttle/portal_queue_sup `)
	w.types("r")
	w.sees(`^PART\+.*\ntakt +running .*\ntakt/database +running`)
	w.types("/janitor\rR")
	w.sees(`^why restart takt/orchestration/janitor\?`)
	w.types("to see it\r")
	w.sees(`^restart takt/orchestration/janitor stops 1 parts, with \d+ requests under way\ny do it`)
	w.types("y")
	takttest.Eventually(t, "it is restarted", func() bool {
		node, err := c.Client.Tree(t.Context(), client.TreeOptions{Path: "orchestration/janitor"})
		return err == nil && node.LastExit == "shutdown: operator"
	})
	w.sees(`^takt/orchestration/janitor +running`)
	audit, err = c.Client.Audit(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "to see it", audit.Entries[0].Reason)

	// It fits every size.
	for _, size := range [][2]int{{100, 30}, {40, 10}, {80, 24}} {
		w.resize(size[0], size[1])
		w.sees(`^takt top  http://(?s:.)*\n 1 fleet  2 queue  3 tree(?s:.)*\nTab view  arrows select[^\n]*\z`)
		require.Len(t, w.lines(), size[1])
	}
	require.Regexp(t, colour, w.written())

	// A controller that is away is no reason to leave.
	require.NoError(t, c.Stop(t.Context(), takttest.Patience))
	w.sees(`does not answer`)
	w.leaves()
}

// TestTopForgesNothing is about a controller that says what it likes, and a terminal
// without colours.
func TestTopForgesNothing(t *testing.T) {
	t.Parallel()
	c := controllertest.Start(t)
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/api/workers":
			controllertest.JSON(w, 200, api.WorkerList{Workers: []api.Worker{{ID: "w1", Name: "evil\x1b[2J\u202e\u009b31m\nfleet", Status: "offline"}}})
		case "/api/builds/statistics":
			controllertest.JSON(w, 200, api.Statistics{})
		case "/api/events":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: supervisor:event\ndata: {\"event\":\"exit\",\"path\":\"a\",\"reason\":\"\\u001b]0;x\\u0007\"}\n\n")
		default:
			return false
		}
		return true
	})
	w := watch(t, takttest.NewEnv(t), "TAKT_URL="+c.URL, "TAKT_API_KEY="+controllertest.APIKey, "NO_COLOR=1")
	w.sees(`^evil\x{FFFD}\[2J\x{FFFD}\x{FFFD}31m\x{FFFD}fleet +offline`)
	w.sees(`a exit \x{FFFD}\]0;x\x{FFFD}$`)
	w.sees(`^load   Invalid admin key \(check TAKT_ADMIN_KEY; it is not the API key`)
	w.leaves()
	require.NotRegexp(t, colour, w.written())
}
