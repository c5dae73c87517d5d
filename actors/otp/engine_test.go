package otp

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// idler is a server that does nothing.
type idler struct{ Base }

func (idler) Init(*Ctx) error { return nil }

// registered counts protoactor's own registry: a leak there is found by no
// other check.
func registered(s *System) int {
	n := 0
	for _, shard := range s.engine.actors.ProcessRegistry.LocalPIDs.LocalPIDs {
		n += shard.Count()
	}
	return n
}

func TestEngineForgetsTheDead(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	before := registered(s)
	root, err := s.StartRoot(t.Context(), "root", SupSpec{
		Strategy: OneForAll, Intensity: 1000, Period: time.Hour,
		Children: []ChildSpec{
			{ID: "a", Server: func() Server { return idler{} }},
			{ID: "b", Server: func() Server { return idler{} }},
		},
	})
	require.NoError(t, err)
	require.Equal(t, before+3, registered(s))
	for range 100 {
		p, err := s.Ref("root/a").Await(t.Context())
		require.NoError(t, err)
		p.Kill()
		<-p.Done()
		_, err = CountChildren(t.Context(), root)
		require.NoError(t, err)
	}
	require.Empty(t, s.Shutdown(t.Context()))
	require.Equal(t, before, registered(s))
}

// TestEngineRefuses sends to an actor that is not there: the sender learns of it
// at once, and nothing is logged.
func TestEngineRefuses(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := New(Options{Logger: zerolog.New(&log)})
	p, err := s.Start("a", func() Server { return idler{} })
	require.NoError(t, err)
	require.Equal(t, posted, p.server.send(Msg{Kind: InfoMsg, Body: 1}))
	require.Equal(t, dropped, (&server{p: p, address: address{s.engine.actors.NewLocalPID("nobody")}}).send(Msg{}))
	p.Kill()
	<-p.Done()
	require.Equal(t, dropped, p.server.send(Msg{Kind: InfoMsg, Body: 2}))
	require.Empty(t, s.Shutdown(t.Context()))
	require.NotContains(t, log.String(), "DeadLetter")
}

func TestDispatcher(t *testing.T) {
	t.Parallel()
	d := newDispatcher()
	var jobs sync.WaitGroup
	ran := make(chan int, 1000)
	for i := range 1000 {
		jobs.Add(1)
		d.Schedule(func() {
			defer jobs.Done()
			ran <- i
		})
	}
	jobs.Wait()
	require.Len(t, ran, 1000)
	close(d.closed)
	done := make(chan struct{})
	d.Schedule(func() { close(done) })
	<-done // a closed one still runs what comes, it only keeps no goroutines
}

// ownFrames returns the functions of this package on the stack, but for those of tests.
func ownFrames() (names []string) {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if strings.Contains(f.File, "actors/otp/") && !strings.HasSuffix(f.File, "_test.go") {
			names = append(names, f.Function)
		}
	}
	return names
}

// framer is a server that hands over the stack of each cast.
type framer struct {
	idler
	stacks chan []string
}

func (f framer) HandleCast(*Ctx, any) { f.stacks <- ownFrames() }

// A message passes few functions of ours between Cast and its handler: ten that are on one
// of the two stacks, and two that look the name up.
func TestFewFunctionsPerMessage(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	stacks := make(chan []string, 1)
	p, err := s.Start("a", func() Server { return framer{stacks: stacks} })
	require.NoError(t, err)
	var sending []string
	p.server.box.schedule = func(run func()) { sending = append(ownFrames(), "Schedule"); s.engine.pool.Schedule(run) }
	require.True(t, Cast(s.Ref("a"), 1))
	passed := append(<-stacks, sending...)
	require.LessOrEqual(t, len(passed), 10, passed)
	require.Empty(t, s.Shutdown(t.Context()))
}

// A supervisor that is killed begins no child any more, not even one that it would only
// end again: its Init could run beside that of the one before it.
func TestNobodyIsStartedAfterAKill(t *testing.T) {
	t.Parallel()
	idle := func(ctx context.Context) error { <-ctx.Done(); return nil }
	sys := New(Options{Logger: zerolog.Nop()})
	t.Cleanup(func() { require.Empty(t, sys.Shutdown(context.WithoutCancel(t.Context()))) })
	root, err := sys.StartRoot(t.Context(), "root", SupSpec{Children: []ChildSpec{{ID: "a", Task: idle}}})
	require.NoError(t, err)
	began := make(chan int, 1)
	_, err = ask(t.Context(), root, func(s *supervisor) (*Proc, error) {
		before := len(s.linked())
		s.p.Kill()
		p, err := s.start(s.rows[0])
		began <- len(s.linked()) - before
		return p, err
	})
	require.ErrorIs(t, err, ErrKilled)
	require.Zero(t, <-began)
	<-root.Done()
}

func TestWindow(t *testing.T) {
	t.Parallel()
	w := window{limit: 2, period: 5}
	for _, tc := range []struct {
		now int64
		ok  bool
	}{{0, true}, {1, true}, {5, false}, {7, true}, {8, false}, {20, true}, {20, true}, {25, false}, {31, true}} {
		require.Equal(t, tc.ok, w.add(tc.now), "at second %d", tc.now)
	}
}
