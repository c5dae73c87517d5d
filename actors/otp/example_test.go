package otp_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"takt/actors/otp"
)

// counter is a server that counts. Its state is lost with each incarnation.
type counter struct {
	otp.Base
	n int
}

func (*counter) Init(*otp.Ctx) error { return nil }

func (s *counter) HandleCall(_ *otp.Ctx, _ otp.From, req any) (any, error) {
	if req == "crash" {
		panic("as ordered")
	}
	s.n++
	return s.n, nil
}

func ExampleCall() {
	sys := otp.New(otp.Options{OnEvent: func(otp.Event) {}})
	ctx := context.Background()
	defer sys.Shutdown(ctx)
	_, err := sys.StartRoot(ctx, "app", otp.SupSpec{Children: []otp.ChildSpec{
		{ID: "counter", Server: func() otp.Server { return &counter{} }},
	}})
	if err != nil {
		fmt.Println(err)
	}

	ref := sys.Ref("app/counter")
	for range 2 {
		n, err := otp.Call[int](ctx, ref, "next")
		fmt.Println(n, err)
	}
	_, err = otp.Call[int](ctx, ref, "crash")
	fmt.Println(err)
	n, err := otp.CallWait[int](ctx, ref, time.Second, "next")
	fmt.Println(n, err)
	// Output:
	// 1 <nil>
	// 2 <nil>
	// process app/counter is down: panic: as ordered
	// 1 <nil>
}

// speaker tells when it starts and stops.
type speaker struct {
	otp.Base
	name string
}

func (s speaker) Init(*otp.Ctx) error           { fmt.Print(" +", s.name); return nil }
func (s speaker) Terminate(_ *otp.Ctx, _ error) { fmt.Print(" -", s.name) }
func (s speaker) HandleCast(_ *otp.Ctx, _ any)  { panic("as ordered") }
func say(name string) func() otp.Server         { return func() otp.Server { return speaker{name: name} } }

// crashB starts the children a, b and c, crashes b and stops the tree.
func crashB(strategy otp.Strategy) {
	sys := otp.New(otp.Options{OnEvent: func(otp.Event) {}})
	ctx := context.Background()
	fmt.Print("boot:")
	root, err := sys.StartRoot(ctx, "app", otp.SupSpec{Strategy: strategy, Children: []otp.ChildSpec{
		{ID: "a", Server: say("a")}, {ID: "b", Server: say("b")}, {ID: "c", Server: say("c")},
	}})
	if err != nil {
		fmt.Println(err)
	}
	b := sys.Whereis("app/b")
	fmt.Print("\ncrash:")
	otp.Cast(b, "crash")
	<-b.Done()
	if _, err := otp.CountChildren(ctx, root); err != nil { // answered after the restart
		fmt.Println(err)
	}
	fmt.Print("\nstop:")
	sys.Shutdown(ctx)
}

func ExampleOneForOne() {
	crashB(otp.OneForOne)
	// Output:
	// boot: +a +b +c
	// crash: -b +b
	// stop: -c -b -a
}

func ExampleOneForAll() {
	crashB(otp.OneForAll)
	// Output:
	// boot: +a +b +c
	// crash: -b -c -a +a +b +c
	// stop: -c -b -a
}

func ExampleRestForOne() {
	crashB(otp.RestForOne)
	// Output:
	// boot: +a +b +c
	// crash: -b -c +b +c
	// stop: -c -b -a
}

func ExampleDynamic() {
	sys := otp.New(otp.Options{OnEvent: func(otp.Event) {}})
	ctx := context.Background()
	defer sys.Shutdown(ctx)
	portals, err := sys.StartRoot(ctx, "portals", otp.SupSpec{
		Strategy: otp.Dynamic, MaxChildren: 2,
		Children: []otp.ChildSpec{{
			ID: "portal", Restart: otp.Temporary,
			Key:        func(args any) string { return fmt.Sprint(args) },
			ServerArgs: func(any) otp.Server { return &counter{} },
		}},
	})
	if err != nil {
		fmt.Println(err)
	}
	for _, id := range []int{4711, 4712, 4713} {
		p, err := otp.StartDynamic(ctx, portals, id)
		fmt.Println(p.Name(), err)
	}
	// Output:
	// portals/4711 <nil>
	// portals/4712 <nil>
	// (none) max_children
}

func ExampleRunTask() {
	sys := otp.New(otp.Options{OnEvent: func(otp.Event) {}})
	ctx := context.Background()
	defer sys.Shutdown(ctx)
	requests, err := sys.StartRoot(ctx, "requests", otp.SupSpec{
		Strategy: otp.Dynamic,
		Children: []otp.ChildSpec{{
			ID: "request", Restart: otp.Temporary,
			TaskArgs: func(context.Context, any) error { return nil },
		}},
	})
	if err != nil {
		fmt.Println(err)
	}
	_, err = otp.RunTask(ctx, requests, text("GET /"), nil, func(context.Context) error {
		fmt.Println(sys.Tree(true)[0].Children[0].Path)
		return errors.New("no luck")
	})
	fmt.Println(err)
	// Output:
	// requests/GET /
	// no luck
}
