package otp_test

import (
	"context"
	"log/slog" // protoactor logs with it
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"takt/actors/otp"
)

// Each benchmark stands beside what protoactor offers natively, so that one run
// shows the ratio:
//
//	go test ./actors/otp -run '^$' -bench . -benchmem

// echoServer replies with the request; "boom" is a crash.
type echoServer struct{ otp.Base }

func (echoServer) Init(*otp.Ctx) error { return nil }

func (echoServer) HandleCall(_ *otp.Ctx, _ otp.From, req any) (any, error) { return req, nil }

func (echoServer) HandleCast(*otp.Ctx, any) { panic("boom") }

func benchSystem(b *testing.B) *otp.System {
	b.Helper()
	sys := otp.New(otp.Options{OnEvent: func(otp.Event) {}})
	b.Cleanup(func() { sys.Shutdown(context.WithoutCancel(b.Context())) })
	return sys
}

func nativeSystem(b *testing.B) *actor.ActorSystem {
	b.Helper()
	sys := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
	b.Cleanup(sys.Shutdown)
	return sys
}

// sequential has one caller call f again and again, parallel has 64.
func sequential(b *testing.B, f func() error) {
	b.Helper()
	b.Run("sequential", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := f(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func parallel(b *testing.B, f func() error) {
	b.Helper()
	b.Run("64 callers", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := f(); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

// nativeEcho does with protoactor's own means what echoServer does.
func nativeEcho(c actor.Context) {
	switch m := c.Message().(type) {
	case int:
		c.Respond(m)
	case string:
		panic(m)
	}
}

func BenchmarkOTPCall(b *testing.B) {
	sys := benchSystem(b)
	p, err := sys.Start("echo", func() otp.Server { return echoServer{} })
	if err != nil {
		b.Fatal(err)
	}
	ref := sys.Ref("echo")
	sequential(b, func() error { _, err := otp.Call[int](b.Context(), ref, 7); return err })
	parallel(b, func() error { _, err := otp.Call[int](b.Context(), p, 7); return err })
}

func BenchmarkNativeCall(b *testing.B) {
	sys := nativeSystem(b)
	pid := sys.Root.Spawn(actor.PropsFromFunc(nativeEcho))
	call := func() error { _, err := sys.Root.RequestFuture(pid, 7, time.Second).Result(); return err }
	sequential(b, call)
	parallel(b, call)
}

// BenchmarkOTPSpawn starts a server, waits for its Init, stops it and waits.
func BenchmarkOTPSpawn(b *testing.B) {
	sys := benchSystem(b)
	b.ReportAllocs()
	for b.Loop() {
		p, err := sys.Start("", func() otp.Server { return echoServer{} })
		if err != nil {
			b.Fatal(err)
		}
		p.Exit(otp.ErrShutdown)
		<-p.Done()
	}
}

func BenchmarkNativeSpawn(b *testing.B) {
	sys := nativeSystem(b)
	props := actor.PropsFromFunc(nativeEcho)
	b.ReportAllocs()
	for b.Loop() {
		if err := sys.Root.StopFuture(sys.Root.Spawn(props)).Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOTPRestart crashes a server and waits for its successor's reply.
func BenchmarkOTPRestart(b *testing.B) {
	sys := benchSystem(b)
	_, err := sys.StartRoot(b.Context(), "root", otp.SupSpec{
		Intensity: 1 << 30, Period: time.Second,
		Children: []otp.ChildSpec{{ID: "echo", Server: func() otp.Server { return echoServer{} }}},
	})
	if err != nil {
		b.Fatal(err)
	}
	ref := sys.Ref("root/echo")
	b.ReportAllocs()
	for b.Loop() {
		p := ref.Whereis()
		otp.Cast(p, "boom")
		<-p.Done()
		if _, err := otp.CallWait[int](b.Context(), ref, time.Second, 7); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNativeRestart(b *testing.B) {
	sys := nativeSystem(b)
	strategy := actor.NewOneForOneStrategy(1<<30, time.Second, actor.DefaultDecider)
	pids := make(chan *actor.PID, 1)
	sys.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if _, ok := c.Message().(*actor.Started); ok {
			pids <- c.Spawn(actor.PropsFromFunc(nativeEcho))
		}
	}, actor.WithSupervisor(strategy)))
	pid := <-pids
	b.ReportAllocs()
	for b.Loop() {
		sys.Root.Send(pid, "boom")
		if _, err := sys.Root.RequestFuture(pid, 7, time.Second).Result(); err != nil {
			b.Fatal(err)
		}
	}
}
