package otp_test

import (
	"context"
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
	sys := otp.New(otp.Options{})
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

func ExampleRestForOne() {
	sys := otp.New(otp.Options{})
	ctx := context.Background()
	fmt.Print("boot:")
	root, err := sys.StartRoot(ctx, "app", otp.SupSpec{Strategy: otp.RestForOne, Children: []otp.ChildSpec{
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
	// Output:
	// boot: +a +b +c
	// crash: -b -c +b +c
	// stop: -c -b -a
}
