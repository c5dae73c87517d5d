package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"

	"takt/cmd/internal/builds"
	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// look is what the controller said at a time.
type look struct {
	at       time.Time
	workers  api.WorkerList
	builds   []api.BuildItem // waiting and running
	whys     map[string]reason
	oldest   string // since when the one waits that waits longest; "": none waits
	totals   api.Statistics
	load     api.Heijunka
	parts    []api.TreeNode // of the tree, without their children
	adminErr string         // why there is neither load nor tree
}

// look asks the controller for all that is shown.
func (t *top) look(ctx context.Context) (l look, err error) {
	if l.workers, err = t.client.Workers(ctx, client.WorkerFilter{Limit: topWorkers}); err != nil {
		return l, err
	}
	if l.totals, err = client.Call(ctx, t.client, api.CountBuilds, api.None{}); err != nil {
		return l, err
	}
	for _, state := range []store.BuildState{store.Pending, store.Assigned, store.Building} {
		builds, err := t.client.List(ctx, client.Filter{Status: string(state), Limit: topBuilds})
		if err != nil {
			return l, err
		}
		if state == store.Pending {
			l.oldest = oldest(builds)
		}
		l.builds = append(l.builds, builds...)
	}
	l.whys = t.reasons(ctx)
	tree, err := t.client.Tree(ctx, client.TreeOptions{})
	if err == nil {
		l.load, err = client.Call(ctx, t.client, api.ShowHeijunka, api.None{})
		l.parts = flatten(nil, tree)
	}
	if err != nil {
		l.adminErr = store.Line(cli.Message(err))
	}
	l.at = time.Now()
	return l, nil
}

// reasons asks why the builds on the screen wait.
func (t *top) reasons(ctx context.Context) map[string]reason {
	known, asked := map[string]reason{}, 0
	if wanted := t.wanted.Load(); wanted != nil {
		for _, id := range *wanted {
			why, ok := t.whys[id]
			if asked < topReasons && time.Since(why.at) > reasonAge {
				asked++
				if reply, err := t.client.Why(ctx, id, client.BuildAuth{}); err == nil {
					why, ok = reason{reply.Reason, time.Now()}, true
				}
			}
			if ok {
				known[id] = why
			}
		}
	}
	t.whys = known
	return known
}

// oldest returns since when the one of pending builds waits that waits longest, "" without one.
func oldest(builds []api.BuildItem) (since string) {
	for _, b := range builds {
		if at := cmp.Or(b.WaitingSince, b.SubmittedAt); since == "" || at < since { // all have one form
			since = at
		}
	}
	return since
}

// flatten appends a node and those below it.
func flatten(all []api.TreeNode, n api.TreeNode) []api.TreeNode {
	children := n.Children
	n.Children = nil
	all = append(all, n)
	for _, child := range children {
		all = flatten(all, child)
	}
	return all
}

// last returns the newest look, and the one that rates are taken from.
func (t *top) last() (now, before look) {
	if len(t.looks) == 0 {
		return look{}, look{}
	}
	return t.looks[len(t.looks)-1], t.looks[0]
}

// growth returns how much a count that grew from a to b has grown a second.
func growth[N int64 | float64](now, before look, b, a N) float64 {
	span := now.at.Sub(before.at).Seconds()
	if span <= 0 || b < a { // b < a: it has restarted
		return 0
	}
	return float64(b-a) / span
}

// activity returns the share of its time for which a part was busy, and how many messages
// it handled a second.
func activity(n api.TreeNode, now, before look) (busy, messages float64) {
	i := slices.IndexFunc(before.parts, func(old api.TreeNode) bool { return old.Path == n.Path })
	if i < 0 {
		return 0, 0
	}
	old := before.parts[i]
	return growth(now, before, n.BusyMS, old.BusyMS) / 1000, growth(now, before, n.Messages, old.Messages)
}

func ageCell(iso string) cell {
	age, ok := cli.Elapsed(iso)
	if !ok {
		return textCell("-")
	}
	return numberCell(age.Seconds(), cli.Age(age))
}

func (t *top) fleetRows() (rows []topRow) {
	now, _ := t.last()
	workers := slices.SortedStableFunc(slices.Values(now.workers.Workers), func(a, b api.Worker) int { return strings.Compare(a.Name, b.Name) })
	for _, w := range workers {
		cpu := cell{text: workerLoad(w), n: -1}
		if telemetryIsPresent(w) && w.Telemetry.CPUPercent != nil {
			cpu.n = *w.Telemetry.CPUPercent
		}
		rows = append(rows, topRow{w.ID, []cell{
			textCell(cmp.Or(w.Name, w.ID)), numberCell(float64(attention(w)), store.Line(workerStatus(w))),
			numberCell(float64(len(w.Builds)), fmt.Sprintf("%d/%d", len(w.Builds), w.MaxConcurrentBuilds)),
			cpu, countCell(w.Completed), countCell(w.Failed), ageCell(w.LastSeenAt),
		}})
	}
	return rows
}

func (t *top) buildRows() (rows []topRow) {
	now, _ := t.last()
	for _, b := range now.builds {
		last := cli.Or(b.WorkerName, cli.Or(b.WorkerID, "-"))
		if b.State == string(store.Pending) {
			last = cmp.Or(now.whys[b.ID].text, "-")
		}
		rows = append(rows, topRow{b.ID, []cell{textCell(buildName(b)), textCell(b.Platform), textCell(b.State), ageCell(b.SubmittedAt), textCell(last)}})
	}
	return rows
}

// buildName is what people call a build, by its labels, and enough of its id; or else its id and labels.
func buildName(b api.BuildItem) string {
	app, branch, commit := b.Labels["app"], b.Labels["branch"], b.Labels["commit"]
	if commit != "" {
		commit = "@" + commit[:min(len(commit), 7)]
	}
	if name := strings.TrimSpace(app + " " + branch + commit); name != "" {
		return name + " " + b.ID[:min(len(b.ID), 8)]
	}
	return strings.TrimSpace(b.ID + " " + builds.LabelText(b.Labels))
}

func (t *top) treeRows() (rows []topRow) {
	now, before := t.last()
	for _, n := range now.parts {
		busy, messages := activity(n, now, before)
		rows = append(rows, topRow{n.Path, []cell{
			textCell(n.Path), textCell(n.Status), numberCell(busy, fmt.Sprintf("%.2f%%", 100*busy)),
			numberCell(messages, fmt.Sprintf("%.1f", messages)), countCell(n.Mailbox), countCell(n.Restarts),
		}})
	}
	return rows
}

// topHead is how many lines stand above the table, topFoot how many below it.
const topHead, topFoot = 7, 2

func tableHeight(height int) int { return max(height-topHead-topFoot, 1) }

// draw draws the screen anew; tcell sends what has changed.
func (t *top) draw() {
	t.screen.Clear()
	t.screen.HideCursor()
	width, height := t.screen.Size()
	plain, bold := tcell.StyleDefault, tcell.StyleDefault.Bold(true)
	now, before := t.last()
	t.put(0, 0, width, bold, "takt top  "+store.Line(t.client.BaseURL()))
	t.put(max(width-8, 0), 0, 8, plain, time.Now().Format(time.TimeOnly))
	for i, line := range t.figures(now, before) {
		style := plain
		if r := now.totals.Recent; i == 1 && r != nil && store.ManyFailed(r.Failed, r.Ended) {
			style = plain.Foreground(color.Red)
		}
		t.put(0, 1+i, width, style, line)
	}
	if t.trouble != "" {
		t.put(0, 1, width, tcell.StyleDefault.Foreground(color.Red), t.trouble)
	}
	v := t.views[t.at]
	rows, selected := t.shown()
	x := 0
	for i, each := range t.views {
		style := plain
		if i == t.at {
			style = bold.Reverse(true)
		}
		x += t.put(x, 5, width-x, style, fmt.Sprintf(" %d %s ", i+1, each.name))
	}
	about := fmt.Sprintf("  %d", len(rows))
	if v.filter != "" {
		about += fmt.Sprintf(" with %q", v.filter)
	}
	t.put(x, 5, width-x, plain, about)
	heading := topRow{}
	for i, c := range v.columns {
		if i == v.sort {
			c.name += map[bool]string{false: "+", true: "-"}[v.down]
		}
		heading.cells = append(heading.cells, cell{text: c.name})
	}
	t.line(6, width, v, heading, bold)
	room := tableHeight(height)
	v.first = max(min(v.first, selected, len(rows)-room), selected-room+1, 0)
	rows = rows[min(v.first, len(rows)):min(v.first+room, len(rows))]
	t.want(rows)
	for i, r := range rows {
		t.line(topHead+i, width, v, r, plain.Reverse(v.first+i == selected))
	}
	keys := "Tab view  arrows select  / filter  s sort  r reverse  d drain  R restart  q quit"
	switch q := t.ask; {
	case q == nil:
		t.put(0, height-2, width, plain, t.said)
	case q.confirm:
		keys = "y do it  any other key: leave it"
		t.put(0, height-2, width, bold, q.text)
	default:
		keys = "Enter go on  Esc leave it"
		text := []rune(q.text + store.Line(q.answer))
		n := t.put(0, height-2, width, bold, string(text[max(len(text)-width+1, 0):])) // the end is what is typed
		t.screen.ShowCursor(n, height-2)
	}
	t.put(0, height-1, width, plain.Dim(true), keys)
	t.screen.Show()
}

// want has refresh ask why the builds of rows wait.
func (t *top) want(rows []topRow) {
	var wanted []string
	if now, _ := t.last(); t.views[t.at].name == "queue" {
		for _, r := range rows {
			if slices.ContainsFunc(now.builds, func(b api.BuildItem) bool { return b.ID == r.id && b.State == string(store.Pending) }) {
				wanted = append(wanted, r.id)
			}
		}
	}
	if was := t.wanted.Swap(&wanted); was != nil && !slices.Equal(*was, wanted) {
		t.poke()
	}
}

// figures returns the four lines above the table.
func (t *top) figures(now, before look) []string {
	if now.at.IsZero() {
		return nil
	}
	minute := func(b, a int64) float64 { return 60 * growth(now, before, b, a) }
	a, b := before.totals, now.totals
	waits := ""
	if age, ok := cli.Elapsed(now.oldest); ok {
		waits = ", the oldest for " + cli.Age(age)
	}
	online := len(slices.DeleteFunc(slices.Clone(now.workers.Workers), func(w api.Worker) bool { return w.Status == "offline" }))
	fleet := store.FleetSummary{Online: online, Able: online}
	failed := fmt.Sprintf(", %.1f failed a minute", minute(b.Failed, a.Failed))
	if r := b.Recent; r != nil { // else the controller is of an earlier release
		fleet.Online, fleet.Able = r.WorkersOnline, r.WorkersServed
		failed = fmt.Sprintf(" a minute; %d of %d failed in the last hour", r.Failed, r.Ended)
	}
	lines := []string{
		fmt.Sprintf("queue  %d wait%s; %d run; %s", b.Pending, waits, b.Assigned+b.Building, fleet.Presence()),
		fmt.Sprintf("rates  %.1f submitted, %.1f completed%s", minute(b.Total, a.Total), minute(b.Completed, a.Completed), failed),
	}
	if now.adminErr != "" {
		return append(lines, "load   "+now.adminErr, "tree   "+now.adminErr)
	}
	g := now.load.Regulator
	load := []string{fmt.Sprintf("load   %s, %d of %d admitted, %.1f requests/s",
		g.Level, g.Load, g.HardLimit, growth(now, before, g.Accepted, before.load.Regulator.Accepted))}
	for _, p := range now.load.Pools {
		if p.Busy+p.QueueLength > 0 {
			load = append(load, fmt.Sprintf("%s %d/%d, %d wait", p.Name, p.Busy, p.Workers, p.QueueLength))
		}
	}
	tree := []string{fmt.Sprintf("tree   %d parts", len(now.parts))}
	busiest, most := "", 0.0
	for _, n := range now.parts {
		if n.Status != "running" {
			tree = append(tree, n.Path+" is "+n.Status)
		}
		if busy, _ := activity(n, now, before); busy > most {
			busiest, most = n.Path, busy
		}
	}
	if busiest != "" {
		tree = append(tree, fmt.Sprintf("the busiest is %s, %.2f%%", busiest, 100*most))
	}
	return append(lines, store.Line(strings.Join(load, "; ")), store.Line(strings.Join(tree, "; ")))
}

// coloured gives a state its colour. tcell shows none if NO_COLOR is set.
func coloured(style tcell.Style, state string) tcell.Style {
	word, _, more := strings.Cut(state, ",")
	switch {
	case word == "offline", word == "terminated", strings.Contains(state, ", suspect"), strings.Contains(state, ", critical"):
		return style.Foreground(color.Red)
	case more, word != "running" && word != "idle":
		return style.Foreground(color.Yellow)
	default:
		return style.Foreground(color.Green)
	}
}

// line draws a row of the table.
func (t *top) line(y, width int, v *view, r topRow, style tcell.Style) {
	rest, share := width, 0
	for _, c := range v.columns {
		if rest -= c.width; c.width == 0 {
			share++
		}
	}
	t.screen.FillArea(0, y, width, 1, ' ', style)
	x := 0
	for i, c := range v.columns {
		wide := c.width
		if wide == 0 {
			wide = max(rest/share, 8)
		}
		one := style
		if (c.name == "STATUS" || c.name == "STATE") && r.id != "" {
			one = coloured(style, r.cells[i].text)
		}
		t.put(x, y, wide-1, one, r.cells[i].text)
		x += wide
	}
}

// put writes at most width columns and returns how many.
func (t *top) put(x, y, width int, style tcell.Style, text string) (used int) {
	for text != "" && used < width {
		rest, n := t.screen.Put(x+used, y, text, style)
		if rest == text { // beyond the edge
			break
		}
		text, used = rest, used+n
	}
	return used
}
