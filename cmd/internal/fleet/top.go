package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// Top returns takt top.
func Top(env cli.Environment) *cobra.Command {
	return cli.Command(env, &cobra.Command{
		Use: "top", Short: "Watch fleet, queue, load and tree in the terminal, and act on them",
		Long: `Watch fleet, queue, load and tree in the terminal, and act on them. Needs the admin
key in TAKT_ADMIN_KEY for load and tree.

Workers that need attention come first. Waiting builds say why they wait.

Keys: Tab or 1 2 3 for fleet, queue and tree; arrows, PgUp and PgDn select; / filters;
s sorts by the next column, r reverses the order; d drains the selected worker or
resumes it; R restarts the selected part of the tree; q quits. Drain and restart ask
for a reason, which is audited, and for confirmation.`,
	}, func(ctx context.Context, s *cli.Session, _ []string) error {
		if term := env.Get("TERM"); !cli.Terminal(s.Out) || term == "" || term == "dumb" {
			return cli.Usage("takt top needs a terminal; takt workers, takt list and takt tree print")
		}
		if s.JSON {
			return cli.Usage("--json does not go with takt top")
		}
		// Unless this works, an error is better than a screen.
		if _, err := s.Client.Workers(ctx, client.WorkerFilter{Limit: 1}); err != nil {
			return err
		}
		screen, err := tcell.NewScreen()
		if err == nil {
			err = screen.Init()
		}
		if err != nil {
			return fmt.Errorf("opening the terminal: %w", err)
		}
		defer screen.Fini()
		return newTop(s.Client, screen).run(ctx)
	})
}

const (
	topTick  = 2 * time.Second
	topPause = 500 * time.Millisecond // between two looks, however much happens
	topSpan  = time.Minute            // over which rates are taken
	// topReasons is how many builds are asked about at each look, reasonAge how long the answer is shown.
	topReasons = 10
	reasonAge  = 10 * time.Second
	// topBuilds and topWorkers bound what is fetched at each look.
	topBuilds, topWorkers = 1000, 1000
)

// top is the state of the screen. It belongs to the goroutine of run. Others send it
// functions.
type top struct {
	client *client.Client
	screen tcell.Screen
	posted chan func()
	dirty  chan struct{} // something has happened
	// wanted are the waiting builds on the screen; written by run. whys is why they wait; refresh only.
	wanted atomic.Pointer[[]string]
	whys   map[string]reason

	looks   []look // the newest last, as far back as topSpan
	trouble string // why there is no newer look
	said    string // the last event, or what became of an order
	views   []*view
	at      int // the view that is shown
	ask     *question
}

// reason is why a build waits, as the controller said at a time.
type reason struct {
	text string
	at   time.Time
}

// view is a table.
type view struct {
	name    string
	columns []column
	rows    func(t *top) []topRow

	filter   string
	sort     int // column
	down     bool
	selected string // id
	first    int    // the row at the top of the table
}

// column is as wide as width; those without one share what is left.
type column struct {
	name  string
	width int
}

type topRow struct {
	id    string
	cells []cell
}

// cell is sorted by n, then by its text.
type cell struct {
	text string
	n    float64
}

func textCell(s string) cell              { return cell{text: store.Line(s)} }
func numberCell(n float64, s string) cell { return cell{text: s, n: n} }
func countCell(n int) cell                { return numberCell(float64(n), strconv.Itoa(n)) }

// question is asked in the last line. yes is called with the answer, or, if it is to be
// confirmed only, after y.
type question struct {
	text    string
	confirm bool
	answer  string
	typed   func(answer string) // at each key; may be nil
	yes     func(answer string)
}

func newTop(c *client.Client, screen tcell.Screen) *top {
	return &top{
		client: c, screen: screen, posted: make(chan func()), dirty: make(chan struct{}, 1), whys: map[string]reason{},
		views: []*view{
			{name: "fleet", rows: (*top).fleetRows, columns: []column{{"WORKER", 0}, {"STATUS", 18}, {"BUILDS", 7}, {"CPU", 5}, {"DONE", 6}, {"FAILED", 7}, {"SEEN", 8}}, sort: 1},
			{name: "queue", rows: (*top).buildRows, columns: []column{{"BUILD", 0}, {"PLATFORM", 9}, {"STATE", 10}, {"AGE", 8}, {"WORKER, OR WHY IT WAITS", 0}}, sort: 3, down: true},
			{name: "tree", rows: (*top).treeRows, columns: []column{{"PART", 0}, {"STATUS", 11}, {"BUSY", 7}, {"MSG/S", 8}, {"MAILBOX", 8}, {"RESTARTS", 10}}, sort: 2, down: true},
		},
	}
}

// run shows the screen until the user quits or ctx ends.
func (t *top) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel(nil)
	others.Go(func() { t.refresh(ctx) })
	others.Go(func() { t.follow(ctx) })
	clock := time.NewTicker(time.Second)
	defer clock.Stop()
	for {
		t.draw()
		select {
		case ev := <-t.screen.EventQ():
			switch ev := ev.(type) {
			case *tcell.EventResize:
				t.screen.Sync()
			case *tcell.EventKey:
				if t.key(ctx, &others, ev) {
					return nil
				}
			}
		case f := <-t.posted:
			f()
		case <-clock.C: // ages grow
		case <-ctx.Done():
			return nil
		}
	}
}

// post has the goroutine of run call f.
func (t *top) post(ctx context.Context, f func()) {
	select {
	case t.posted <- f:
	case <-ctx.Done():
	}
}

// refresh looks at the controller each topTick, and when something has happened.
func (t *top) refresh(ctx context.Context) {
	for ctx.Err() == nil {
		l, err := t.look(ctx)
		t.post(ctx, func() {
			if err != nil {
				t.trouble = store.Line(cli.Message(err))
				return
			}
			t.trouble = ""
			if n := len(t.looks); n > 0 { // rates need the figures only
				t.looks[n-1].workers, t.looks[n-1].builds = api.WorkerList{}, nil
			}
			t.looks = append(t.looks, l)
			for l.at.Sub(t.looks[0].at) > topSpan {
				t.looks = t.looks[1:]
			}
		})
		_ = backoff.Pause(ctx, topPause)
		_ = backoff.PauseUntil(ctx, topTick-topPause, t.dirty)
	}
}

// follow listens to events, which come between two looks.
func (t *top) follow(ctx context.Context) {
	topics := []string{"queue:updated", store.TopicBuildUpdated, store.TopicWorkerUpdated, "supervisor:event"}
	for ctx.Err() == nil {
		_ = t.client.Events(ctx, topics, func(topic string, data json.RawMessage) error { // refresh tells the trouble
			t.poke()
			var e struct{ Event, Path, Reason string }
			if topic == "supervisor:event" && json.Unmarshal(data, &e) == nil && !strings.Contains(e.Path, "/request_sup/") {
				t.post(ctx, func() { t.say("%s %s %s", e.Path, e.Event, e.Reason) })
			}
			return nil
		})
		_ = backoff.Pause(ctx, topTick)
	}
}

// poke has refresh look soon.
func (t *top) poke() {
	select {
	case t.dirty <- struct{}{}:
	default:
	}
}

func (t *top) say(format string, args ...any) {
	t.said = time.Now().Format(time.TimeOnly) + " " + store.Line(fmt.Sprintf(format, args...))
}

// shown returns the rows of the view that match its filter, in its order, and the index of
// the selected one; -1 if there is none.
func (t *top) shown() (rows []topRow, selected int) {
	v := t.views[t.at]
	wanted := strings.ToLower(v.filter)
	rows = slices.DeleteFunc(v.rows(t), func(r topRow) bool {
		return !slices.ContainsFunc(r.cells, func(c cell) bool { return strings.Contains(strings.ToLower(c.text), wanted) })
	})
	slices.SortStableFunc(rows, func(a, b topRow) int {
		if v.down {
			a, b = b, a
		}
		x, y := a.cells[v.sort], b.cells[v.sort]
		return cmp.Or(cmp.Compare(x.n, y.n), strings.Compare(x.text, y.text))
	})
	selected = slices.IndexFunc(rows, func(r topRow) bool { return r.id == v.selected })
	if selected < 0 && len(rows) > 0 {
		selected = 0 // until the user selects one, it is the first
	}
	return rows, selected
}

// key handles a key. It reports whether the user quits.
func (t *top) key(ctx context.Context, others *sync.WaitGroup, ev *tcell.EventKey) (quit bool) {
	if ev.Key() == tcell.KeyCtrlC {
		return true
	}
	if t.ask != nil {
		t.answer(ev)
		return false
	}
	v := t.views[t.at]
	_, height := t.screen.Size()
	switch ev.Key() {
	case tcell.KeyTab:
		t.at = (t.at + 1) % len(t.views)
	case tcell.KeyUp:
		t.move(-1)
	case tcell.KeyDown:
		t.move(1)
	case tcell.KeyPgUp:
		t.move(-tableHeight(height))
	case tcell.KeyPgDn:
		t.move(tableHeight(height))
	case tcell.KeyEsc:
		v.filter = ""
	default:
		return t.letter(ctx, others, ev.Str())
	}
	return false
}

// letter handles the key of a letter, a digit or a sign.
func (t *top) letter(ctx context.Context, others *sync.WaitGroup, key string) (quit bool) {
	v := t.views[t.at]
	switch key {
	case "q":
		return true
	case "1", "2", "3":
		t.at = int(key[0] - '1')
	case "k":
		t.move(-1)
	case "j":
		t.move(1)
	case "s":
		v.sort = (v.sort + 1) % len(v.columns)
	case "r":
		v.down = !v.down
	case "/":
		v.filter = ""
		t.ask = &question{text: "show only: ", typed: func(text string) { v.filter = text }, yes: func(string) {}}
	case "d":
		t.drain(ctx, others)
	case "R":
		t.restart(ctx, others)
	}
	return false
}

func (t *top) move(by int) {
	if rows, at := t.shown(); at >= 0 {
		t.views[t.at].selected = rows[min(max(at+by, 0), len(rows)-1)].id
	}
}

// answer handles a key while a question is asked.
func (t *top) answer(ev *tcell.EventKey) {
	q := t.ask
	letters := []rune(q.answer)
	switch ev.Key() {
	case tcell.KeyEsc:
		q.answer, t.ask = "", nil
	case tcell.KeyEnter:
		t.ask = nil
		if !q.confirm {
			q.yes(q.answer)
		}
		return
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		q.answer = string(letters[:max(len(letters)-1, 0)])
	default:
		if q.confirm {
			if t.ask = nil; ev.Str() == "y" {
				q.yes("")
			}
			return
		}
		q.answer += ev.Str()
	}
	if q.typed != nil {
		q.typed(q.answer)
	}
}

// because asks why something is to be done.
func (t *top) because(what string, then func(reason string)) {
	t.ask = &question{text: "why " + what + "? ", yes: func(reason string) {
		if reason = strings.TrimSpace(reason); reason == "" {
			t.say("not done: %s needs a reason", what)
			return
		}
		then(reason)
	}}
}

// carryOut does something that takes a while, and then calls what it returns.
func (t *top) carryOut(ctx context.Context, others *sync.WaitGroup, what string, do func() (then func(), err error)) {
	t.say("%s …", what)
	others.Go(func() {
		then, err := do()
		t.post(ctx, func() {
			if err != nil {
				t.say("%s: %s", what, cli.Message(err))
				return
			}
			then()
		})
	})
}

// drain drains the selected worker, or resumes it.
func (t *top) drain(ctx context.Context, others *sync.WaitGroup) {
	now, _ := t.last()
	rows, at := t.shown()
	if t.views[t.at].name != "fleet" || at < 0 {
		return
	}
	i := slices.IndexFunc(now.workers.Workers, func(w api.Worker) bool { return w.ID == rows[at].id })
	w := now.workers.Workers[i] // the rows are made of these
	what, means, order := "drain ", "it gets no more builds and finishes those that it has", api.DrainWorker
	if w.Draining || w.Quarantine != nil {
		what, means, order = "resume ", "it gets builds again", api.ResumeWorker
	}
	what += store.Line(cmp.Or(w.Name, w.ID))
	t.because(what, func(reason string) {
		t.ask = &question{text: what + ": " + means, confirm: true, yes: func(string) {
			t.carryOut(ctx, others, what, func() (func(), error) {
				_, err := client.Call(ctx, t.client, order, api.WorkerOrder{ID: api.WorkerID(w.ID), Body: api.Reason{Reason: reason}})
				return func() { t.say("%s: done", what) }, err
			})
		}}
	})
}

// restart restarts the selected part of the tree, after it has shown what that stops.
func (t *top) restart(ctx context.Context, others *sync.WaitGroup) {
	rows, at := t.shown()
	if t.views[t.at].name != "tree" || at < 0 {
		return
	}
	path := rows[at].id
	what := "restart " + path
	t.because(what, func(reason string) {
		o := client.Order{Action: "restart", Path: path, Reason: reason}
		t.carryOut(ctx, others, what, func() (func(), error) {
			plan, err := t.client.Plan(ctx, o)
			return func() {
				t.ask = &question{
					text:    fmt.Sprintf("%s stops %d parts, with %d requests under way", what, len(plan.Affected), plan.Requests),
					confirm: true, yes: func(string) {
						t.carryOut(ctx, others, what, func() (func(), error) {
							_, err := t.client.Operate(ctx, o)
							return func() { t.say("%s: done", what) }, err
						})
					},
				}
			}, err
		})
	})
}
