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

const (
	gateLimit = 10 * time.Second // some mistakes show up as a gate that is never reached
	restLimit = 60 * time.Second
)

// replay runs one scenario against the library and returns the first difference
// to its trace.
type replay struct {
	*world
	sys  *otp.System
	root *otp.Proc
}

func runScenario(ctx context.Context, sc *scenario) error {
	if sc.Format != 1 || len(sc.Trace) != len(sc.Steps)+1 {
		return fmt.Errorf("malformed scenario: format %d, %d steps, %d entries", sc.Format, len(sc.Steps), len(sc.Trace))
	}
	w := newWorld()
	r := &replay{world: w, sys: otp.New(otp.Options{OnEvent: w.onEvent})}
	defer func() {
		over, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel() // whatever is left is killed
		r.sys.Shutdown(over)
	}()
	if err := r.check(ctx, sc.Trace[0], r.boot(ctx, sc.Tree), nil); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	for i, st := range sc.Steps {
		if sc.Trace[i+1].Op != st.Op {
			return fmt.Errorf("step %d: trace is about %s, step is %s", i+1, sc.Trace[i+1].Op, st.Op)
		}
		result, during, err := r.perform(ctx, st)
		if err == nil {
			err = r.check(ctx, sc.Trace[i+1], result, during)
		}
		if err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, st.Op, err)
		}
	}
	return nil
}

// boot starts the root as the runner's child.
func (r *replay) boot(ctx context.Context, tree start) any {
	root, err := r.sys.StartRoot(ctx, "root", r.supervisor(&ghost{path: "root"}, tree))
	switch {
	case err == nil:
		r.root = root
		return "ok"
	case errors.Is(err, otp.Ignore):
		return "ignore"
	default:
		return r.failure(err)
	}
}

// supervisor is the start function of a supervisor node: it takes the number,
// waits at the gate, obeys the init rules.
func (r *replay) supervisor(g *ghost, node start) otp.SupSpec {
	var above *otp.Proc
	if g.sup != nil {
		above = g.sup.proc
	}
	g.n = r.next(g.path, above)
	r.mu.Lock()
	r.pending[g.path] = g
	r.mu.Unlock()
	if rule := node.ruleFor(g.n); rule != nil {
		err := error(otp.Ignore)
		if rule.Do == "error" {
			err = atom(rule.Reason)
		}
		return otp.SupSpec{Init: func() error { return err }}
	}
	s := otp.SupSpec{
		Strategy: r.strategy(node.Flags.Strategy), AutoShutdown: r.autoShutdown(node.Flags.AutoShutdown),
		Intensity: 1, Period: 5 * time.Second,
	}
	if node.Flags.Intensity != nil {
		s.Intensity = *node.Flags.Intensity
	}
	if p := node.Flags.Period; p != nil {
		s.Period = time.Duration(*p) * time.Second
		if *p == 0 {
			s.Period = -1 // zero is our default
		}
	}
	g.pool = s.Strategy == otp.Dynamic
	for i := range node.Children {
		s.Children = append(s.Children, r.childSpec(g, &node.Children[i]))
	}
	r.add("init", g, nil)
	return s
}

// childSpec translates a child specification below sup.
func (r *replay) childSpec(sup *ghost, sp *spec) otp.ChildSpec {
	shutdown, err := shutdownTime(sp)
	c := otp.ChildSpec{
		ID: sp.ID, Restart: r.restart(sp.Restart), Shutdown: shutdown, Significant: sp.Significant,
	}
	child := func(key string) *ghost { return &ghost{path: sup.path + "/" + key, key: key, sup: sup} }
	switch {
	case err != nil || sp.Type != "" && sp.Type != "worker" && sp.Type != "supervisor":
		c.ID = "" // unknown field value: refused
	case sup.pool:
		c.Key = func(a any) string { return a.(*args).Key } //nolint:forcetypeassert // ours
		c.ServerArgs = func(a any) otp.Server {
			return &worker{w: r.world, self: child(c.Key(a)), does: sp.Start.with(a.(*args))} //nolint:forcetypeassert // ours
		}
		if sp.Type == "supervisor" {
			c.ServerArgs = nil
			c.SupervisorArgs = func(a any) otp.SupSpec {
				return r.supervisor(child(c.Key(a)), sp.Start.with(a.(*args))) //nolint:forcetypeassert // ours
			}
		}
	case sp.Type == "supervisor":
		c.Supervisor = func() otp.SupSpec { return r.supervisor(child(sp.ID), sp.Start) }
	default:
		c.Server = func() otp.Server { return &worker{w: r.world, self: child(sp.ID), does: sp.Start} }
	}
	return c
}

// perform does a step, with what happens at its gate.
func (r *replay) perform(ctx context.Context, st step) (result any, during []any, err error) {
	if st.Gate == "" {
		result, err = await(r.begin(ctx, st))
		return result, nil, err
	}
	reached, opened := make(chan *otp.Proc, 1), make(chan struct{})
	r.mu.Lock()
	r.armed, r.reached, r.opened = st.Gate, reached, opened
	r.mu.Unlock()
	action := r.begin(ctx, st)
	var stuck *otp.Proc
	select {
	case stuck = <-reached:
	case <-time.After(gateLimit):
		close(opened)
		return nil, nil, fmt.Errorf("gate %s is not reached", st.Gate)
	}
	var items []<-chan any
	for _, item := range st.During {
		before := stuck.Mailbox()
		results := r.begin(ctx, item)
		items = append(items, results)
		awaitDelivery(stuck, before, results)
	}
	close(opened)
	for _, results := range items {
		value, err := await(results)
		if err != nil {
			return nil, nil, err
		}
		during = append(during, value)
	}
	result, err = await(action)
	return result, during, err
}

// awaitDelivery waits until an item has put its message into the mailbox of the
// supervisor at the gate, or has failed without.
func awaitDelivery(stuck *otp.Proc, before int, results <-chan any) {
	for range 500 {
		if stuck.Mailbox() > before {
			return
		}
		if len(results) > 0 && fmt.Sprint(results) == "{exit,noproc}" {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func await(results <-chan any) (any, error) {
	select {
	case v := <-results:
		if err, ok := v.(error); ok {
			return nil, err
		}
		return v, nil
	case <-time.After(restLimit):
		return nil, errors.New("no result")
	}
}

// begin starts an action; its result, or an error of the runner, arrives in the
// channel.
func (r *replay) begin(ctx context.Context, st step) <-chan any {
	results := make(chan any, 1)
	switch st.Op {
	case "crash":
		r.exit(results, st.Path, reasonOf(st.Reason))
	case "exit_normal":
		r.exit(results, st.Path, otp.ErrNormal)
	case "exit_shutdown":
		reason := error(otp.ErrShutdown)
		if st.Term != "" {
			reason = otp.Shutdown(st.Term)
		}
		r.exit(results, st.Path, reason)
	case "kill":
		r.end(results, st.Path, func(p *otp.Proc) { p.Kill() })
	case "sleep":
		time.Sleep(time.Duration(st.Ms) * time.Millisecond)
		results <- "ok"
	case "stop":
		r.stop(results)
	default:
		r.request(ctx, results, st)
	}
	return results
}

func (r *replay) exit(results chan<- any, path string, reason error) {
	r.end(results, path, func(p *otp.Proc) { otp.Cast(p, exit{reason}) })
}

// end ends a process and waits until it is dead.
func (r *replay) end(results chan<- any, path string, how func(*otp.Proc)) {
	g := r.current(path)
	if g == nil || !g.proc.Alive() {
		results <- "{exit,noproc}"
		return
	}
	how(g.proc)
	<-g.proc.Done()
	results <- "ok"
}

// stop orders the root to end; the result is its reason.
func (r *replay) stop(results chan<- any) {
	root := r.root
	if root == nil || !root.Alive() {
		results <- "{exit,noproc}"
		return
	}
	root.Exit(otp.ErrShutdown)
	go func() {
		<-root.Done()
		r.mu.Lock()
		defer r.mu.Unlock()
		results <- r.term(root.Reason())
	}()
}

// request calls a supervisor, in a goroutine of its own.
func (r *replay) request(ctx context.Context, results chan<- any, st step) {
	g := r.current(st.Sup)
	if g == nil {
		results <- "{exit,noproc}"
		return
	}
	call, err := r.api(ctx, g, st)
	if err != nil {
		results <- err
		return
	}
	go func() {
		value, err := call()
		switch {
		case err != nil:
			results <- r.failure(err)
		case value != nil:
			results <- value
		default:
			results <- "ok"
		}
	}()
}

// api returns the call that a step stands for. It looks up processes now: that
// is when the request is made.
func (r *replay) api(ctx context.Context, g *ghost, st step) (func() (any, error), error) {
	sup := g.proc
	switch st.Op {
	case "terminate_child":
		if st.PidOf == "" {
			return func() (any, error) { return nil, otp.TerminateChild(ctx, sup, st.ID) }, nil
		}
		child := r.current(st.PidOf)
		if child == nil {
			return nil, fmt.Errorf("no such instance: %s", st.PidOf)
		}
		return func() (any, error) { return nil, otp.TerminateProc(ctx, sup, child.proc) }, nil
	case "restart_child":
		return func() (any, error) { _, err := otp.RestartChild(ctx, sup, st.ID); return nil, err }, nil
	case "delete_child":
		return func() (any, error) { return nil, otp.DeleteChild(ctx, sup, st.ID) }, nil
	case "start_child":
		if st.Args != nil {
			return func() (any, error) { _, err := otp.StartDynamic(ctx, sup, st.Args); return nil, err }, nil
		}
		c := r.childSpec(g, st.Spec)
		return func() (any, error) { _, err := otp.StartChild(ctx, sup, c); return nil, err }, nil
	case "which_children":
		return func() (any, error) { return r.which(ctx, g) }, nil
	case "count_children":
		return func() (any, error) {
			n, err := otp.CountChildren(ctx, sup)
			return map[string]any{"specs": n.Specs, "active": n.Active, "supervisors": n.Supervisors, "workers": n.Workers}, err
		}, nil
	default:
		return nil, fmt.Errorf("unknown op %q", st.Op)
	}
}

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
	for begin := time.Now(); time.Since(begin) < restLimit; time.Sleep(time.Millisecond) {
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
		if c.State == otp.Restarting || c.Proc != nil && !c.Proc.Alive() {
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
	switch c.State {
	case otp.Restarting:
		row["state"] = "restarting"
	case otp.Undefined:
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
