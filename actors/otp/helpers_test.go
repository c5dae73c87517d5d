package otp_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// puppet is a Server made of functions; those that are nil do nothing.
type puppet struct {
	init      func(c *otp.Ctx) error
	call      func(c *otp.Ctx, from otp.From, req any) (any, error)
	cast      func(c *otp.Ctx, msg any)
	info      func(c *otp.Ctx, msg any)
	terminate func(c *otp.Ctx, reason error)
}

func (p puppet) Init(c *otp.Ctx) error {
	if p.init == nil {
		return nil
	}
	return p.init(c)
}

// HandleCall echoes by default.
func (p puppet) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	if p.call == nil {
		return req, nil
	}
	return p.call(c, from, req)
}

func (p puppet) HandleCast(c *otp.Ctx, msg any) {
	if p.cast != nil {
		p.cast(c, msg)
	}
}

func (p puppet) HandleInfo(c *otp.Ctx, msg any) {
	if p.info != nil {
		p.info(c, msg)
	}
}

func (p puppet) Terminate(c *otp.Ctx, reason error) {
	if p.terminate != nil {
		p.terminate(c, reason)
	}
}

// make is the start function of a child that does what p does.
func (p puppet) make() otp.Server { return p }

// sleeper is a task that waits until it is asked to end.
func sleeper(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// sleeperWith is a template's.
func sleeperWith(ctx context.Context, _ any) error { return sleeper(ctx) }

// startTask runs a task in a goroutine of its own and returns its process.
func startTask(tb testing.TB, sup otp.Target, label string, run func(ctx context.Context) error) *otp.Proc {
	tb.Helper()
	began, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		failed <- runTask(tb.Context(), sup, text(label), func(ctx context.Context) error { close(began); return run(ctx) })
	}()
	select {
	case <-began:
	case err := <-failed:
		require.NoError(tb, err)
	}
	infos := must(otp.WhichChildren(tb.Context(), sup))(tb)
	return infos[0].Proc
}

// journal collects events, safe for concurrent use.
type journal struct {
	mu     sync.Mutex // guards events
	events []otp.Event
}

func (j *journal) hook(o *otp.Options) {
	o.OnEvent = func(e otp.Event) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.events = append(j.events, e)
	}
}

// of returns the events of one kind.
func (j *journal) of(kind otp.EventKind) []otp.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []otp.Event
	for _, e := range j.events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// one starts a supervisor "root" with a single permanent child "child", which
// may be restarted three times.
func one(tb testing.TB, sys *otp.System, child otp.ChildSpec) *otp.Proc {
	tb.Helper()
	child.ID = "child"
	return otptest.Tree(tb, sys, otp.SupSpec{Intensity: 3, Period: time.Hour, Children: []otp.ChildSpec{child}})
}

// text is a task's label.
type text string

func (t text) String() string { return string(t) }

// runTask is RunTask for who knows that it runs, or sees by the error that not.
func runTask(ctx context.Context, sup otp.Target, label text, fn func(ctx context.Context) error) error {
	_, err := otp.RunTask(ctx, sup, label, nil, fn)
	return err
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
