package otp_test

import (
	"context"
	"errors"
	"fmt"
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
	*recorder
	sys  *otp.System
	root *otp.Proc
}

func runScenario(ctx context.Context, sc *scenario) error {
	w := newRecorder()
	r := &replay{recorder: w, sys: otp.New(otp.Options{OnEvent: w.onEvent})}
	defer func() {
		over, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		cancel(nil) // whatever is left is killed
		r.sys.Shutdown(over)
	}()
	if err := r.check(ctx, sc.Trace[0], r.boot(ctx, sc.Tree), nil); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	for i, st := range sc.Steps {
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
	c := otp.ChildSpec{
		ID: sp.ID, Restart: r.restart(sp.Restart), Shutdown: shutdownTime(sp), Significant: sp.Significant,
	}
	child := func(key string) *ghost { return &ghost{path: sup.path + "/" + key, key: key, sup: sup} }
	switch {
	case sup.pool:
		c.Key = func(a any) string { return a.(*args).Key } // ours
		c.ServerArgs = func(a any) otp.Server {
			return &worker{w: r.recorder, self: child(c.Key(a)), does: sp.Start.with(a.(*args))} // ours
		}
		if sp.Type == "supervisor" {
			c.ServerArgs = nil
			c.SupervisorArgs = func(a any) otp.SupSpec {
				return r.supervisor(child(c.Key(a)), sp.Start.with(a.(*args))) // ours
			}
		}
	case sp.Type == "supervisor":
		c.Supervisor = func() otp.SupSpec { return r.supervisor(child(sp.ID), sp.Start) }
	default:
		c.Server = func() otp.Server { return &worker{w: r.recorder, self: child(sp.ID), does: sp.Start} }
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
		pause(time.Millisecond)
	}
}

// pause lets time pass: the bubble's, mostly.
func pause(d time.Duration) { <-time.After(d) }

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
		pause(time.Duration(st.Ms) * time.Millisecond)
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
