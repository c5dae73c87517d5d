package otp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"takt/actors/otp"
)

// check waits for rest and compares what was seen with the trace.
func (r *replay) check(ctx context.Context, want entry, result any, during []any) error {
	after, err := r.rest(ctx)
	if err != nil {
		return err
	}
	events, async := r.collect()
	if err := differ("result", want.Result, result); err != nil {
		return err
	}
	if len(want.During) != len(during) {
		return fmt.Errorf("during: want %d results, got %v", len(want.During), during)
	}
	for i := range during {
		if err := differ(fmt.Sprintf("during[%d]", i), want.During[i], during[i]); err != nil {
			return err
		}
	}
	if !reflect.DeepEqual(list(want.Events), list(events)) {
		return fmt.Errorf("events:\nwant %s\ngot  %s", lines(want.Events), lines(events))
	}
	if !reflect.DeepEqual(list(want.Async), list(async)) {
		return fmt.Errorf("async:\nwant %s\ngot  %s", lines(want.Async), lines(async))
	}
	return differ("after", want.After, after)
}

func list(events []event) []event { return append([]event{}, events...) }

func lines(events []event) string {
	var b strings.Builder
	for _, e := range events {
		text, err := json.Marshal(e)
		fmt.Fprintf(&b, "\n  %s", text)
		if err != nil {
			fmt.Fprintf(&b, "%v", err)
		}
	}
	return b.String()
}

// differ compares decoded values, not texts.
func differ(what string, want json.RawMessage, got any) error {
	text, err := json.Marshal(got)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var a, b any
	if err := errors.Join(json.Unmarshal(want, &a), json.Unmarshal(text, &b)); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !reflect.DeepEqual(a, b) {
		return fmt.Errorf("%s:\nwant %s\ngot  %s", what, want, text)
	}
	return nil
}

// rest waits until the tree is at rest and returns its state.
func (r *replay) rest(ctx context.Context) (any, error) {
	for begin := time.Now(); time.Since(begin) < restLimit; pause(time.Millisecond) {
		if state, ok := r.look(ctx); ok {
			return state, nil
		}
	}
	return nil, errors.New("the tree does not come to rest")
}

// look takes one look at the tree. It is not at rest while a listed process is
// dead, a restart is pending, or a process that is not in the tree is alive.
func (r *replay) look(ctx context.Context) (any, bool) {
	inTree := map[*otp.Proc]bool{}
	var state any
	if r.root != nil && r.root.Alive() {
		row, ok := r.lookAt(ctx, r.root, "id", inTree)
		if !ok {
			return nil, false
		}
		state = row
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, g := range r.ghosts {
		if inTree[p] == g.exited || g.exited == p.Alive() {
			return nil, false
		}
	}
	return state, true
}

func (r *replay) lookAt(ctx context.Context, sup *otp.Proc, tag string, inTree map[*otp.Proc]bool) (map[string]any, bool) {
	g := r.ghostOf(sup)
	inTree[sup] = true
	infos, err1 := otp.WhichChildren(ctx, sup)
	n, err2 := otp.CountChildren(ctx, sup)
	if g == nil || err1 != nil || err2 != nil {
		return nil, false
	}
	rows := []any{}
	for _, c := range r.order(g, infos) {
		if c.Restarting || c.Proc != nil && !c.Proc.Alive() {
			return nil, false
		}
		row := r.row(g, c)
		if c.Proc != nil {
			inTree[c.Proc] = true
			if c.Type == otp.Supervisor {
				below, ok := r.lookAt(ctx, c.Proc, childTag(g), inTree)
				if !ok {
					return nil, false
				}
				row = below
			}
		}
		rows = append(rows, row)
	}
	return map[string]any{
		tag: g.path[strings.LastIndex(g.path, "/")+1:], "n": g.n, "type": "supervisor", "state": "alive",
		"counts": []int{n.Specs, n.Active, n.Supervisors, n.Workers}, "children": rows,
	}, true
}

func childTag(sup *ghost) string {
	if sup.pool {
		return "key"
	}
	return "id"
}

// which returns the rows of which_children.
func (r *replay) which(ctx context.Context, g *ghost) (any, error) {
	infos, err := otp.WhichChildren(ctx, g.proc)
	rows := []any{}
	for _, c := range r.order(g, infos) {
		rows = append(rows, r.row(g, c))
	}
	return rows, err
}

// order sorts the rows of a pool by key, those without a process last.
func (r *replay) order(sup *ghost, infos []otp.ChildInfo) []otp.ChildInfo {
	if !sup.pool {
		return infos
	}
	key := func(c otp.ChildInfo) string {
		if c.Proc == nil {
			return "\xff"
		}
		return c.Proc.Path()
	}
	slices.SortStableFunc(infos, func(a, b otp.ChildInfo) int { return strings.Compare(key(a), key(b)) })
	return infos
}

func (r *replay) row(sup *ghost, c otp.ChildInfo) map[string]any {
	row := map[string]any{"type": "worker"}
	if c.Type == otp.Supervisor {
		row["type"] = "supervisor"
	}
	if sup.pool {
		row["key"] = nil
	} else {
		row["id"] = c.ID
	}
	switch {
	case c.Restarting:
		row["state"] = "restarting"
	case c.Proc == nil:
		row["state"] = "undefined"
	default:
		g := r.ghostOf(c.Proc)
		row["state"], row["n"] = "alive", g.n
		if sup.pool {
			row["key"] = g.key
		}
	}
	return row
}
