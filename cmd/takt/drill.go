package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

func newDrillCommand(env environment) *cobra.Command {
	var length time.Duration
	var seed uint64
	cmd := clientCommand(env, &cobra.Command{
		Use:   "drill",
		Short: "Make faults in a staging controller and check that it keeps its promises",
		Long: `Make faults in a staging controller and check that it keeps its promises. A drill
submits builds and is the fleet that builds them. Meanwhile it restarts random parts of
the tree, cuts the connections to the database, leaves notifications unread, makes the
storage slow and kills workers. Every build that was accepted has to end with its bytes,
none may have two holders, no call may fail but with 503 and Retry-After, and what
takt audit check checks has to hold.

The controller has to run with --allow-drill and --build-max-attempts 3 or more, and
with no other workers or builds. The builds of a drill stay in its lists. After the last
fault the drill waits for builds of killed workers, so for about one build time-out.
Needs the admin key in TAKT_ADMIN_KEY. Exit code 1 if a promise was broken.`,
	}, func(ctx context.Context, s *session, _ []string) error {
		if length <= 0 {
			return cli.Usage("--duration must be more than 0")
		}
		if seed == 0 {
			seed = rand.Uint64()
		}
		d := newDrill(s, seed)
		if err := d.prepare(ctx); err != nil {
			return err
		}
		d.run(ctx, length)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r := d.seen.report(seed, length)
		if err := s.Result(r, r.print); err != nil {
			return err
		}
		if len(r.Broken) > 0 {
			return errDrill
		}
		return nil
	})
	cmd.Flags().DurationVar(&length, "duration", 2*time.Minute, "how long faults are made")
	cmd.Flags().Uint64Var(&seed, "seed", 0, "which faults are made, and when; 0: random, and printed")
	return cmd
}

var errDrill = errors.New("the controller did not keep every promise")

// drillReport is the result of a drill.
type drillReport struct {
	Seed    uint64         `json:"seed"`
	Seconds float64        `json:"seconds"`
	Faults  map[string]int `json:"faults"`
	// Accepted builds are those that the controller has acknowledged.
	Accepted  int `json:"accepted"`
	Completed int `json:"completed"`
	// Repeated is the number of calls that were refused for a while or got no reply, and
	// LongestWait is how long one call took with its repeats, in seconds.
	Repeated    int     `json:"repeated"`
	LongestWait float64 `json:"longest_wait"`
	LongestCall string  `json:"longest_call"`
	// Broken lists the promises that were not kept.
	Broken []string `json:"broken"`
}

func (r drillReport) print(w io.Writer) {
	var faults []string
	for name, n := range r.Faults {
		faults = append(faults, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(faults)
	fmt.Fprintf(w, "drill     %g s with seed %d\n", r.Seconds, r.Seed)
	fmt.Fprintf(w, "faults    %s\n", strings.Join(faults, ", "))
	fmt.Fprintf(w, "builds    %d accepted, %d completed with their bytes\n", r.Accepted, r.Completed)
	fmt.Fprintf(w, "calls     %d repeated, the longest wait %.1f s: %s\n", r.Repeated, r.LongestWait, cli.Plain(r.LongestCall))
	fmt.Fprintf(w, "broken    %d\n", len(r.Broken))
	const most = 20
	for _, text := range r.Broken[:min(most, len(r.Broken))] {
		fmt.Fprintf(w, "  %s\n", cli.Plain(text))
	}
	if more := len(r.Broken) - most; more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}

// drill is one run.
type drill struct {
	*session
	seed     uint64
	chance   *rand.Rand // faults only
	begun    time.Time
	seen     ledger
	restarts map[string]int // by path, before the drill
	patience time.Duration  // after the last fault
}

func newDrill(s *session, seed uint64) *drill {
	return &drill{session: s, seed: seed, chance: chance(seed, 0), restarts: map[string]int{}}
}

// chance returns the nth sequence of random numbers of a seed.
func chance(seed, n uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, n))
}

// prepare refuses a controller that is not fit for a drill.
func (d *drill) prepare(ctx context.Context) error {
	_, err := d.client.Fault(ctx, api.Fault{Fault: api.FaultListener, Reason: d.reason()})
	if err != nil {
		return err
	}
	fleet, err := d.client.Workers(ctx, client.WorkerFilter{})
	if err != nil {
		return err
	}
	online := slices.DeleteFunc(fleet.Workers, func(w api.Worker) bool { return w.Status == string(store.Offline) })
	health, err := d.client.Health(ctx)
	if err != nil {
		return err
	}
	if busy := health.Queue.Pending + health.Queue.Active; len(online)+busy > 0 {
		return fmt.Errorf("the controller has %d workers and %d builds under way: a drill wants it for itself", len(online), busy)
	}
	found, err := d.client.CheckInvariants(ctx, "")
	if err != nil {
		return err
	}
	for _, i := range found.Invariants {
		if i.Broken > 0 {
			return fmt.Errorf("broken before the drill: %s (takt audit check)", i.Promise)
		}
	}
	root, err := d.client.Tree(ctx, client.TreeOptions{})
	if err != nil {
		return err
	}
	each(&root, func(n *api.TreeNode) { d.restarts[n.Path] = n.Restarts })
	times, err := d.client.HeartbeatSettings(ctx)
	if err != nil {
		return err
	}
	d.patience = time.Minute + time.Duration(2*(*times.BuildTimeout+*times.CheckInterval)*float64(time.Second))
	return nil
}

func (d *drill) reason() string { return fmt.Sprintf("drill with seed %d", d.seed) }

// run makes faults for as long as length, and returns when everything is checked.
func (d *drill) run(ctx context.Context, length time.Duration) {
	d.begun = time.Now()
	d.Note("drill with seed %d", d.seed)
	faults, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	working, dismiss := context.WithCancelCause(ctx)
	var submitters, workers sync.WaitGroup
	for i := range drillWorkers {
		workers.Go(func() { d.work(working, chance(d.seed, uint64(100+i))) })
	}
	for i := range drillSubmitters {
		submitters.Go(func() { d.submit(ctx, faults.Done(), chance(d.seed, uint64(200+i))) })
	}
	d.trouble(ctx, faults)
	submitters.Wait()
	d.verify(ctx)
	dismiss(errors.New("the drill is over"))
	workers.Wait()
	d.inspect(ctx)
}

// trouble makes faults until making ends. ctx bounds the calls.
func (d *drill) trouble(ctx, making context.Context) {
	for {
		pause(making, 200*time.Millisecond+time.Duration(d.chance.Int64N(int64(2*time.Second))))
		if making.Err() != nil {
			return
		}
		// Each round takes the same numbers from chance, so that a seed is a plan.
		kind, where, seconds := d.chance.IntN(8), d.chance.Float64(), 1+4*d.chance.Float64()
		switch kind {
		case 0:
			d.fault(ctx, api.FaultConnections, 0)
		case 1:
			d.fault(ctx, api.FaultListener, 2*seconds)
		case 2:
			d.fault(ctx, api.FaultStorage, seconds)
		case 3, 4:
			if d.seen.kill(where) {
				d.did("worker", "killed")
			}
		default:
			d.restart(ctx, where)
		}
		d.check(ctx)
	}
}

// did records a fault.
func (d *drill) did(fault, detail string) {
	d.seen.fault(fault)
	d.Note("%6.1f s  %s %s", time.Since(d.begun).Seconds(), fault, detail)
}

func (d *drill) fault(ctx context.Context, name string, seconds float64) {
	d.did(name, fmt.Sprintf("%.1f s", seconds))
	_ = d.again(ctx, "fault", func(ctx context.Context) error { // again records it
		_, err := d.client.Fault(ctx, api.Fault{Fault: name, Seconds: seconds, Reason: d.reason()})
		return err
	})
}

// restart restarts one part of the tree: where is from 0 to 1.
func (d *drill) restart(ctx context.Context, where float64) {
	var paths []string
	if err := d.again(ctx, "tree", func(ctx context.Context) error {
		root, err := d.client.Tree(ctx, client.TreeOptions{})
		paths = nil
		each(&root, func(n *api.TreeNode) {
			if n.Restart != "temporary" {
				paths = append(paths, n.Path)
			}
		})
		return err
	}); err != nil {
		return
	}
	path := paths[int(where*float64(len(paths)))]
	d.did("restart", path)
	_, err := d.client.Operate(ctx, client.Order{Action: "restart", Path: path, Reason: d.reason(), Timeout: 30 * time.Second})
	if err != nil && ctx.Err() == nil && store.CodeOf(err) != store.Conflict && !d.excused(err) {
		d.seen.broke("restart %s: %v", path, err)
	}
}

// check checks the invariants of the database.
func (d *drill) check(ctx context.Context) {
	_ = d.again(ctx, "invariants", func(ctx context.Context) error {
		found, err := d.client.CheckInvariants(ctx, "")
		for _, i := range found.Invariants {
			if i.Broken > 0 {
				d.seen.broke("%s %s", i.Promise, strings.Join(i.Examples, ", "))
			}
		}
		return err
	})
}

// inspect checks what is left after the drill: the database, and a tree of which nothing
// has crashed.
func (d *drill) inspect(ctx context.Context) {
	d.check(ctx)
	_ = d.again(ctx, "tree", func(ctx context.Context) error {
		root, err := d.client.Tree(ctx, client.TreeOptions{})
		each(&root, func(n *api.TreeNode) {
			if n.Status != "running" || n.Leaked > 0 || n.Restarts > d.restarts[n.Path] {
				d.seen.broke("%s is %s with %d crashes and %d leaked processes: %s", n.Path, n.Status, n.Restarts, n.Leaked, n.LastExit)
			}
		})
		return err
	})
}

// each calls f with n and all nodes under it.
func each(n *api.TreeNode, f func(n *api.TreeNode)) {
	f(n)
	for i := range n.Children {
		each(&n.Children[i], f)
	}
}

// excused reports whether a call may be repeated after err, and records a reply that no
// fault excuses.
func (d *drill) excused(err error) bool {
	if !client.Temporary(err) {
		return false
	}
	if status := client.StatusOf(err); status >= 500 && (status != 503 || client.RetryAfter(err) == 0) {
		d.seen.broke("%v", err)
	}
	return true
}

// again makes a call until it succeeds, and records the error with which it fails for
// good.
func (d *drill) again(ctx context.Context, what string, call func(context.Context) error) error {
	begun, repeats := time.Now(), 0
	retry := client.Retry{Temporary: d.excused, OnWait: func(error, time.Duration) { repeats++ }}
	retry.Min, retry.Max = 100*time.Millisecond, time.Second
	err := retry.Do(ctx, call)
	d.seen.called(what, repeats, time.Since(begun))
	if err != nil && ctx.Err() == nil {
		d.seen.broke("%s: %v", what, err)
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
