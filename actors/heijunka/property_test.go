package heijunka

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/actors/otp"
	"takt/store"
)

// The gate against a model of who has a token: releases once, twice and by the
// death of the holder, limits that change, and a table that is looked at
// meanwhile.
func TestGateAgainstAModel(t *testing.T) {
	t.Parallel()
	sys := otp.New(otp.Options{})
	defer sys.Shutdown(context.Background())
	rapid.Check(t, func(t *rapid.T) {
		cfg := steady(1, "urgent", "usual")
		h := New(sys, Deps{}, cfg)
		limits := cfg.Limits
		type holder struct {
			token Token
			proc  *otp.Proc
		}
		var held []holder
		var released []Token
		accepted := int64(0)
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "which") }
		drop := func(i int) { held = append(held[:i], held[i+1:]...) }
		ask := func(domain string, limit int) {
			m := Metadata{ID: "id", Route: "/r"}
			if rapid.Bool().Draw(t, "process") {
				p, err := sys.Start("", func() otp.Server { return &idler{} })
				require.NoError(t, err)
				m.Holder = p
			}
			token, err := h.RequestAdmission(domain, m)
			require.Equal(t, len(held) < limit, err == nil)
			if err == nil {
				held = append(held, holder{token, m.Holder})
				accepted++
			} else if m.Holder != nil {
				m.Holder.Kill()
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"urgent": func(*rapid.T) { ask("urgent", limits.Hard) },
			"usual":  func(*rapid.T) { ask("usual", limits.Regular()) },
			"release": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				i := pick(len(held))
				require.True(t, h.Release(held[i].token))
				if held[i].proc != nil {
					held[i].proc.Kill()
				}
				released = append(released, held[i].token)
				drop(i)
			},
			"release again": func(t *rapid.T) {
				if len(released) == 0 {
					t.Skip()
				}
				require.False(t, h.Release(released[pick(len(released))]))
			},
			"die": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				i := pick(len(held))
				if held[i].proc == nil {
					t.Skip()
				}
				held[i].proc.Kill()
				require.Eventually(t, func() bool { return int(h.gate.load.Load()) == len(held)-1 }, 30*time.Second, time.Microsecond*100)
				released = append(released, held[i].token)
				drop(i)
			},
			"limits": func(t *rapid.T) {
				hard := rapid.IntRange(2, 40).Draw(t, "hard")
				limits = Limits{Soft: hard, Hard: hard, Reserved: rapid.Float64Range(0, 0.5).Draw(t, "reserved")}
				h.gate.set(limits)
			},
			"": func(t *rapid.T) {
				require.EqualValues(t, len(held), h.gate.load.Load())
				n := 0
				h.gate.each(func(*entry) { n++ })
				require.Equal(t, len(held), n)
				require.Equal(t, accepted, h.gate.accepted())
			},
		})
		for _, x := range held {
			if x.proc != nil {
				x.proc.Kill()
			}
		}
	})
}

// idler does nothing.
type idler struct{ otp.Base }

func (*idler) Init(*otp.Ctx) error { return nil }

// From many goroutines: what is admitted is never above the limit, and all of it
// comes back.
func TestGateIsNeverAboveItsLimit(t *testing.T) {
	t.Parallel()
	g := newGate(Limits{Soft: 10, Hard: 300, Reserved: 0.2})
	domains := []*domain{{DomainConfig: DomainConfig{Name: "urgent", Priority: true}}, {DomainConfig: DomainConfig{Name: "usual"}}}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			g.each(func(e *entry) {
				if e.id != e.route {
					t.Error("an entry was written while it was looked at")
				}
			})
		}
	})
	var inside atomic.Int64
	var users sync.WaitGroup
	for u := range 16 {
		users.Go(func() {
			d := u % 2
			ids := []string{"a", "b", "c", "d"}
			for i := range 3000 {
				var mine []Token
				for range 1 + i%40 {
					token, rule, load, limit := g.admit(domains[d], ids[i%4], ids[i%4], 0)
					if rule != "" {
						if load < limit {
							t.Errorf("refused at %d of %d", load, limit)
						}
						continue
					}
					mine = append(mine, token)
					if all := inside.Add(1); all > 300 {
						t.Errorf("%d inside", all)
					}
				}
				for _, token := range mine {
					inside.Add(-1)
					if !token.Release() || token.Release() {
						t.Error("released other than once")
					}
				}
			}
		})
	}
	users.Wait()
	close(stop)
	wg.Wait()
	require.Zero(t, g.load.Load())
	g.each(func(*entry) { t.Error("a token is out") })
}

// P6: whatever ends requests, and whatever of heijunka restarts under them,
// admitted is never above the limit, is who is at work, and nothing is left.
func TestNothingLeaksWhateverHappens(t *testing.T) {
	t.Parallel()
	const requests = 100_000
	cfg := Config{Limits: Limits{Soft: 40, Hard: 60, Reserved: 0.2}}
	cfg = cfg.withDefaults()
	cfg.Health.BackoffMin, cfg.Health.BackoffMax = time.Millisecond, 10*time.Millisecond
	w := start(t, cfg)

	var atWork, most atomic.Int64
	var outcomes [4]atomic.Int64 // served, overloaded, unavailable, ended by itself
	handler := func(random *rand.Rand, cancel context.CancelCauseFunc) func(ctx context.Context) error {
		kind, spin := random.IntN(100), random.IntN(50)
		return func(ctx context.Context) error {
			n := atWork.Add(1)
			defer atWork.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if load := w.h.gate.load.Load(); load > 60 || load < 1 {
				t.Errorf("load of %d", load)
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
			for next.Add(1) <= requests {
				ctx, cancel := context.WithCancelCause(context.Background())
				if random.IntN(20) == 0 { // gone before it begins, or while it waits
					go cancel(errDisconnected)
				}
				err := w.h.Do(ctx, Work{Domain: domains[random.IntN(5)], Route: "/r", ID: "id", Key: "k"}, handler(random, cancel))
				cancel(nil)
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
	for i := range outcomes {
		t.Logf("outcome %d: %d", i, outcomes[i].Load())
	}
	require.Positive(t, outcomes[0].Load())
	require.EqualValues(t, requests, outcomes[0].Load()+outcomes[1].Load()+outcomes[2].Load()+outcomes[3].Load())
	// All pools come back to their size, and work.
	require.Eventually(t, func() bool {
		for _, p := range w.h.pools {
			if s := p.Status(); s.Workers < s.Target {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond)
	for _, domain := range []string{Fleet, Submit, Query, Hook, Transfer} {
		require.NoError(t, w.serve(t.Context(), domain, 0))
	}
	counts, err := otp.CountChildren(t.Context(), w.sys.Ref("takt/request_sup"))
	require.NoError(t, err)
	require.Zero(t, counts.Active, "request actors")
	require.True(t, w.sys.Shutdown(context.Background()).Clean()) // TestMain looks for goroutines
}

var errDisconnected = errors.New("client disconnected")

// havoc restarts and kills each child, pools' parts, workers and the whole
// subtree, one after the other, until stop.
func (w *world) havoc(stop <-chan struct{}) {
	const top = "takt/heijunka"
	victims := []string{
		top, top + "/pool_sup", top + "/load_regulator", top + "/balancer", top + "/burst_handler",
		top + "/pool_sup/query", top + "/pool_sup/query/workers", top + "/pool_sup/query/manager", top + "/pool_sup/fleet/manager",
	}
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
		case 2: // workers crash
			for proc := range w.h.pools[i%len(w.h.pools)].lanes.workers() {
				proc.Kill()
				break
			}
		}
	}
}

// restart restarts what is at path as an operator does.
func (w *world) restart(path string) error {
	at := len(path) - 1
	for path[at] != '/' {
		at--
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := otp.RestartRunning(ctx, w.sys.Ref(path[:at]), path[at+1:])
	return err
}
