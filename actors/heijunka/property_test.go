package heijunka

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/actors/otp"
	"takt/store"
	"takt/store/limiter"
)

// The gate against a model of who has a token: releases in any order, and limits
// that change meanwhile.
func TestGateAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := store.HeijunkaLimits{Soft: 8, Hard: 10, Reserved: 0.2}
		g := newGate(limits)
		urgent, usual := &Pool{cfg: PoolConfig{Priority: true}}, &Pool{}
		held := []*token{}
		accepted, regular, hard := int64(0), int64(0), int64(0)
		ask := func(d *Pool, limit int, refused *int64) {
			x := &token{own: d}
			_, err := g.admit(x)
			require.Equal(t, len(held) < limit, err == nil)
			if err != nil {
				require.Equal(t, store.Overloaded, store.CodeOf(err))
				*refused++
				return
			}
			held = append(held, x)
			accepted++
		}
		t.Repeat(map[string]func(*rapid.T){
			"urgent": func(*rapid.T) { ask(urgent, limits.Hard, &hard) },
			"usual":  func(*rapid.T) { ask(usual, limits.Regular(), &regular) },
			"release": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				g.release(held[i])
				held = slices.Delete(held, i, i+1)
			},
			"limits": func(t *rapid.T) {
				n := rapid.IntRange(2, 40).Draw(t, "hard")
				limits = store.HeijunkaLimits{Soft: n, Hard: n, Reserved: rapid.Float64Range(0, 0.5).Draw(t, "reserved")}
				g.set(limits)
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(held), g.load)
				table := []*token{}
				for x := g.table.next; x != &g.table; x = x.next {
					table = append(table, x)
				}
				require.Equal(t, held, table, "in order of admission")
				s, _ := g.status()
				require.Equal(t, []int64{accepted, regular, hard}, []int64{s.Accepted, s.RejectedRegular, s.RejectedHard})
			},
		})
	})
}

// A pool against a model: who has a place, who waits, in which order; sizes,
// surges and bounds change meanwhile, and waiters give up.
func TestPoolAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := PoolConfig{Name: "p", Initial: 3, Min: 1, Max: 6, Overflow: rapid.IntRange(0, 4).Draw(t, "overflow"), Queue: 5}
		p := newPool(cfg, time.Hour, newGate(store.HeijunkaLimits{Soft: 1, Hard: 1}))
		type waiter struct {
			cancel context.CancelCauseFunc
			done   chan error
			place  *limiter.Unit
		}
		var held []*waiter
		var line []*waiter
		settle := func() { // whoever was handed a place has it now, and only the first ones
			for len(line) > 0 && p.places.Counts().Waiting < len(line) {
				require.NoError(t, <-line[0].done)
				held, line = append(held, line[0]), line[1:]
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				ctx, cancel := context.WithCancelCause(context.Background())
				w := &waiter{cancel: cancel, done: make(chan error, 1)}
				full := len(line) == cfg.Queue
				free := len(held) < p.target()+cfg.Overflow
				go func() {
					var err error
					w.place, err = p.places.Take(ctx, store.Share{}, nil)
					w.done <- err
				}()
				switch {
				case free && len(line) == 0:
					require.NoError(t, <-w.done)
					held = append(held, w)
				case full:
					requireRule(t, <-w.done, RuleQueue)
				default:
					require.False(t, free, "a newcomer waits behind nobody who could go on")
					line = append(line, w)
					require.Eventually(t, func() bool { return p.places.Counts().Waiting == len(line) }, 10*time.Second, 10*time.Microsecond)
				}
			},
			"give back": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				held[0].place.Release()
				held = held[1:]
				settle()
			},
			"give up": func(t *rapid.T) {
				if len(line) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(line)-1).Draw(t, "which")
				line[i].cancel(errDisconnected)
				require.ErrorIs(t, <-line[i].done, errDisconnected)
				line = slices.Delete(line, i, i+1)
				settle()
			},
			"scale": func(t *rapid.T) {
				p.scaled = time.Time{}
				_ = p.scale(rapid.IntRange(-3, 3).Draw(t, "by"))
				settle()
			},
			"surge": func(t *rapid.T) { p.setSurge(rapid.IntRange(0, 3).Draw(t, "places")); settle() },
			"bound": func(t *rapid.T) {
				low := rapid.IntRange(1, 4).Draw(t, "low")
				p.bound(low, low+rapid.IntRange(0, 4).Draw(t, "more"))
				settle()
			},
			"linger": func(*rapid.T) { p.linger() },
			"": func(t *rapid.T) {
				p.mu.Lock()
				defer p.mu.Unlock()
				c := p.counted()
				require.Equal(t, len(held), c.Held)
				require.Equal(t, len(line), c.Waiting)
				require.GreaterOrEqual(t, p.size, p.target())
				require.GreaterOrEqual(t, p.base, p.low)
				require.LessOrEqual(t, p.base, p.high)
				if len(line) > 0 {
					require.GreaterOrEqual(t, c.Held, p.target()+cfg.Overflow, "nobody waits while there is a place")
				}
			},
		})
		for _, w := range line {
			w.cancel(errDisconnected)
			require.ErrorIs(t, <-w.done, errDisconnected)
		}
	})
}

func requireRule(t require.TestingT, err error, rule string) {
	var e *store.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, rule, e.Overload.Rule)
}

// P6: whatever ends requests, and whatever of heijunka restarts under them,
// admitted is never above the limit, is who is at work, and nothing is left.
func TestNothingLeaksWhateverHappens(t *testing.T) {
	t.Parallel()
	const total = 100_000
	w := start(t, Config{Limits: store.HeijunkaLimits{Soft: 40, Hard: 60, Reserved: 0.2}})

	var atWork, most atomic.Int64
	var outcomes [5]atomic.Int64 // served, overloaded, unavailable, ended by itself, its goroutine has ended
	handler := func(random *rand.Rand, cancel context.CancelCauseFunc) func(ctx context.Context) error {
		kind, spin := random.IntN(100), random.IntN(50)
		return func(ctx context.Context) error {
			n := atWork.Add(1)
			defer atWork.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			for range spin {
				runtime.Gosched()
			}
			switch {
			case kind < 10:
				panic("a defect")
			case kind < 11:
				runtime.Goexit()
			case kind < 20:
				cancel(errDisconnected)
				<-ctx.Done()
				return context.Cause(ctx)
			case kind < 25:
				return errDefect
			}
			return nil
		}
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for u := range 100 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(u), 7))
			domains := []string{Fleet, Submit, Query, Hook, Transfer}
			for next.Add(1) <= total {
				ctx, cancel := context.WithCancelCause(context.Background())
				if random.IntN(20) == 0 { // gone before it begins, or while it waits
					go cancel(errDisconnected)
				}
				work := store.Work{Domain: domains[random.IntN(5)], Route: "/r", ID: "id", Key: "k"}
				err, ended := error(nil), true
				own := make(chan struct{})
				go func() { // which a handler may end
					defer close(own)
					err = w.h.Do(ctx, work, handler(random, cancel))
					ended = false
				}()
				<-own
				cancel(nil)
				if ended {
					outcomes[4].Add(1)
					continue
				}
				switch store.CodeOf(err) {
				case "":
					outcomes[0].Add(1)
				case store.Overloaded:
					outcomes[1].Add(1)
					runtime.Gosched()
				case store.Unavailable:
					outcomes[2].Add(1)
				default:
					outcomes[3].Add(1)
				}
			}
		})
	}
	stop := make(chan struct{})
	var havoc sync.WaitGroup
	havoc.Go(func() { w.havoc(stop) })
	wg.Wait()
	close(stop)
	havoc.Wait()

	w.requireNothingHeld()
	require.LessOrEqual(t, most.Load(), int64(60))
	require.Greater(t, most.Load(), int64(5), "they were at work together")
	sum := int64(0)
	for i := range outcomes {
		t.Logf("outcome %d: %d", i, outcomes[i].Load())
		sum += outcomes[i].Load()
	}
	require.Positive(t, outcomes[0].Load())
	require.EqualValues(t, total, sum)
	for _, domain := range Names() {
		require.NoError(t, w.serve(t.Context(), domain, 0))
	}
	require.Empty(t, w.sys.Shutdown(context.Background())) // TestMain looks for goroutines
}

var errDisconnected = errors.New("client disconnected")

// havoc restarts and kills each child, requests, their supervisors and the whole
// subtree, one after the other, until stop.
func (w *fixture) havoc(stop <-chan struct{}) {
	victims := append(actors(), requests+"/query", requests+"/fleet")
	victims[2] = top + "/pool_sup/query"
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(3 * time.Millisecond):
		}
		path := victims[i%len(victims)]
		switch i / len(victims) % 3 {
		case 0: // an operator's restart
			_ = w.restart(path)
		case 1: // a crash
			if p := w.sys.Whereis(path); p != nil {
				p.Kill()
			}
		case 2: // a request's process is killed
			children, _ := otp.WhichChildren(context.Background(), w.sys.Ref(requests+"/"+w.h.pools[i%len(w.h.pools)].name))
			if len(children) > 0 {
				children[0].Proc.Kill()
			}
		}
	}
}

// restart restarts what is at path as an operator does.
func (w *fixture) restart(path string) error {
	at := len(path) - 1
	for path[at] != '/' {
		at--
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := otp.RestartRunning(ctx, w.sys.Ref(path[:at]), path[at+1:])
	return err
}
