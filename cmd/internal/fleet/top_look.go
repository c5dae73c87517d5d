package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

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
	oldest   string          // when the oldest that waits was submitted; "": none waits
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
		if n := len(builds); n > 0 && state == store.Pending {
			l.oldest = builds[n-1].SubmittedAt
		}
		l.builds = append(l.builds, builds...)
	}
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
	for _, w := range now.workers.Workers {
		cpu := cell{text: workerLoad(w), n: -1}
		if w.Telemetry != nil && w.Telemetry.CPUPercent != nil {
			cpu.n = *w.Telemetry.CPUPercent
		}
		rows = append(rows, topRow{w.ID, []cell{
			textCell(cmp.Or(w.Name, w.ID)), textCell(workerStatus(w)),
			numberCell(float64(len(w.Builds)), fmt.Sprintf("%d/%d", len(w.Builds), w.MaxConcurrentBuilds)),
			cpu, countCell(w.Completed), countCell(w.Failed), ageCell(w.LastSeenAt),
		}})
	}
	return rows
}

func (t *top) buildRows() (rows []topRow) {
	now, _ := t.last()
	for _, b := range now.builds {
		rows = append(rows, topRow{b.ID, []cell{
			textCell(b.ID), textCell(b.Platform), textCell(b.State), ageCell(b.SubmittedAt), textCell(cli.Or(b.WorkerName, cli.Or(b.WorkerID, "-"))),
		}})
	}
	return rows
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
