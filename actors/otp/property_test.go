package otp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"takt/actors/otp"
)

// shape is a random tree: a worker, or a supervisor with children.
type shape struct {
	id       string
	sup      bool
	task     bool
	restart  otp.Restart
	strategy otp.Strategy
	budget   int
	kids     []*shape
}

func drawShape(rt *rapid.T, id string, depth int) *shape {
	s := &shape{
		id: id, sup: true,
		strategy: rapid.SampledFrom([]otp.Strategy{otp.OneForOne, otp.OneForAll, otp.RestForOne}).Draw(rt, id+" strategy"),
		budget:   rapid.IntRange(0, 3).Draw(rt, id+" budget"),
	}
	for i := range rapid.IntRange(1, 4).Draw(rt, id+" children") {
		kid := fmt.Sprintf("%s%d", strings.TrimPrefix(id, "root"), i)
		if depth > 0 && rapid.Bool().Draw(rt, kid+" is a supervisor") {
			s.kids = append(s.kids, drawShape(rt, kid, depth-1))
			continue
		}
		s.kids = append(s.kids, &shape{
			id: kid, task: rapid.Bool().Draw(rt, kid+" is a task"),
			restart: rapid.SampledFrom([]otp.Restart{otp.Permanent, otp.Transient, otp.Temporary}).Draw(rt, kid+" restart"),
		})
	}
	return s
}

func (s *shape) spec() otp.SupSpec {
	spec := otp.SupSpec{Strategy: s.strategy, Intensity: s.budget, Period: time.Hour}
	for _, kid := range s.kids {
		c := otp.ChildSpec{ID: kid.id, Restart: kid.restart}
		switch {
		case kid.sup:
			c.Supervisor = kid.spec
		case kid.task:
			c.Task = sleeper
		default:
			c.Server = puppet{}.make
		}
		spec.Children = append(spec.Children, c)
	}
	return spec
}

// bootOrder is the order in which starts must be reported: each supervisor
// after its children.
func (s *shape) bootOrder(path string) []string {
	var order []string
	for _, kid := range s.kids {
		order = append(order, kid.bootOrder(path+"/"+kid.id)...)
	}
	return append(order, path)
}

// budgets collects the intensities by path.
func (s *shape) budgets(path string, into map[string]int) {
	into[path] = s.budget
	for _, kid := range s.kids {
		kid.budgets(path+"/"+kid.id, into)
	}
}

// stopOrder is the order in which a tree must end.
func stopOrder(n otp.Node) []string {
	if n.Status != otp.StatusRunning {
		return nil
	}
	var order []string
	for _, kid := range slices.Backward(n.Children) {
		order = append(order, stopOrder(kid)...)
	}
	return append(order, n.Path)
}

// blow is one step of a crash schedule.
type blow struct {
	whom int // index into the registered names
	how  string
}

func TestTreesSurviveWhatTheirBudgetsAllow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		tree := drawShape(rt, "root", 2)
		blows := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) blow {
			return blow{
				whom: rapid.IntRange(0, 1<<20).Draw(rt, "whom"),
				how:  rapid.SampledFrom([]string{"boom", "normal", "shutdown", "kill"}).Draw(rt, "how"),
			}
		}), 0, 12).Draw(rt, "blows")
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = batter(t, tree, blows) })
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

// batter boots a tree, hits its processes and stops it, and returns the first
// promise that did not hold. The bubble itself fails if a goroutine remains.
func batter(t *testing.T, tree *shape, blows []blow) error {
	t.Helper()
	var seen journal
	opts := otp.Options{}
	seen.hook(&opts)
	sys := otp.New(opts)
	root := must(sys.StartRoot(t.Context(), "root", tree.spec()))(t)
	if got, want := paths(seen.of(otp.EventStarted)), tree.bootOrder("root"); !slices.Equal(got, want) {
		return fmt.Errorf("started %v, want %v", got, want)
	}
	budgets := map[string]int{}
	tree.budgets("root", budgets)
	for _, b := range blows {
		names := sys.Names()
		if len(names) == 0 {
			break
		}
		p := sys.Whereis(names[b.whom%len(names)])
		switch b.how {
		case "kill":
			p.Kill()
		case "normal":
			p.Exit(otp.ErrNormal)
		case "shutdown":
			p.Exit(otp.ErrShutdown)
		default:
			p.Exit(errBoom)
		}
		synctest.Wait()
		if err := intact(sys, root, &seen, budgets); err != nil {
			return fmt.Errorf("after %s of %s: %w", b.how, p.Path(), err)
		}
	}
	var want []string
	if root.Alive() {
		want = stopOrder(sys.Tree(true)[0])
	}
	before := len(seen.of(otp.EventExit))
	leaked := sys.Shutdown(t.Context())
	if got := paths(seen.of(otp.EventExit)[before:]); !slices.Equal(got, want) {
		return fmt.Errorf("stopped %v, want %v", got, want)
	}
	if len(leaked) > 0 || len(sys.Names()) > 0 {
		return fmt.Errorf("left behind: %v, names %v", leaked, sys.Names())
	}
	return nil
}

func paths(events []otp.Event) []string {
	var list []string
	for _, e := range events {
		list = append(list, e.Path)
	}
	return list
}

// intact checks what must hold whenever the tree is at rest.
func intact(sys *otp.System, root *otp.Proc, seen *journal, budgets map[string]int) error {
	for _, e := range seen.of(otp.EventStarted) {
		for sup := e.Proc.Supervisor(); e.Proc.Alive() && sup != nil; sup = sup.Supervisor() {
			if !sup.Alive() {
				return fmt.Errorf("%s outlives %s", e.Path, sup.Path())
			}
		}
	}
	counts := map[*otp.Proc]int{}
	for _, e := range seen.of(otp.EventRestarting) {
		counts[e.Proc.Supervisor()]++
	}
	gaveUp := map[*otp.Proc]bool{}
	for _, e := range seen.of(otp.EventGaveUp) {
		gaveUp[e.Proc] = true
		if e.Proc.Alive() {
			return fmt.Errorf("%s has given up and lives", e.Path)
		}
	}
	for _, e := range seen.of(otp.EventStarted) {
		n, budget := counts[e.Proc], budgets[e.Path]
		if n > budget || gaveUp[e.Proc] && n != budget {
			return fmt.Errorf("%s has restarted %d times, gave up: %t, budget: %d", e.Path, n, gaveUp[e.Proc], budget)
		}
	}
	if !root.Alive() {
		if names := sys.Names(); len(names) > 0 {
			return fmt.Errorf("names without a tree: %v", names)
		}
		return nil
	}
	return restful(sys.Tree(true)[0])
}

// restful checks that nothing is under way.
func restful(n otp.Node) error {
	if n.Status != otp.StatusRunning && n.Status != otp.StatusTerminated {
		return fmt.Errorf("%s is %s at rest", n.Path, n.Status)
	}
	for _, kid := range n.Children {
		if err := restful(kid); err != nil {
			return err
		}
	}
	return nil
}
