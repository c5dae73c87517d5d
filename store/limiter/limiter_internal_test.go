package limiter

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/store"
)

// queueLength is how many may wait.
const queueLength = 1024

// queued takes units of a Limiter in the background. It notes in which order they came.
type queued struct {
	*Limiter
	group sync.WaitGroup
	mu    sync.Mutex // guards what follows
	order []string
	units map[string][]*Unit
}

func newQueued(most int) *queued {
	return &queued{Limiter: New(Limit{
		Rule: "t", Most: most, Fair: true, Wait: 20 * time.Second, Queue: queueLength, Refusal: store.Error{RetryAfter: 5 * time.Second},
	}), units: map[string][]*Unit{}}
}

func (q *queued) ask(ctx context.Context, who string) <-chan error {
	ended := make(chan error, 1)
	q.group.Go(func() {
		u, err := q.Take(ctx, store.Share{Part: who}, nil)
		if err == nil {
			q.mu.Lock()
			q.order, q.units[who] = append(q.order, who), append(q.units[who], u)
			q.mu.Unlock()
		}
		ended <- err
	})
	synctest.Wait()
	return ended
}

// giveBack gives back the oldest unit of a key.
func (q *queued) giveBack(who string) {
	q.mu.Lock()
	u := q.units[who][0]
	q.units[who] = q.units[who][1:]
	q.mu.Unlock()
	u.Release()
}

func TestUnitsAreGivenInTurnBetweenKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueued(1)
		require.NoError(t, <-q.ask(t.Context(), "a"))
		holder := "a"
		for who := range strings.FieldsSeq("a a a b b c") {
			q.ask(t.Context(), who)
		}
		for i, next := range strings.Fields("a b c a b d a") {
			if i == 3 {
				q.ask(t.Context(), "d") // behind those that came before it
			}
			q.giveBack(holder)
			synctest.Wait()
			require.Len(t, q.order, i+2)
			require.Equal(t, next, q.order[i+1], "%v", q.order)
			holder = next
		}
		q.giveBack(holder)
		q.group.Wait()
		requireIdle(t, q.Limiter)
		require.Zero(t, q.taken)
	})
}

func TestAKeyLeavesUnitsToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueued(100)
		var refused []<-chan error
		for range 100 {
			refused = append(refused, q.ask(t.Context(), "greedy"))
		}
		require.Len(t, q.order, 75, "three times what is free")
		begin := time.Now()
		for range 10 {
			require.NoError(t, <-q.ask(t.Context(), "other"))
		}
		require.Zero(t, time.Since(begin))
		for _, ended := range refused[75:] {
			e, ok := errors.AsType[*store.Error](<-ended)
			require.True(t, ok)
			require.Equal(t, store.Overloaded, e.Code)
			require.Equal(t, 5*time.Second, e.RetryAfter)
			require.Equal(t, "t", e.Overload.Rule)
		}
		require.Equal(t, 20*time.Second, time.Since(begin))
		q.group.Wait()
	})
}

// A credential has one share, however many workers its holder makes up.
func TestACredentialLeavesUnitsToOthers(t *testing.T) {
	t.Parallel()
	l := New(Limit{Most: 80, Fair: true})
	take := func(who store.Share) error { _, err := l.Take(t.Context(), who, nil); return err }
	got := 0
	for i := range 200 {
		if take(store.Share{Credential: "low", Part: strconv.Itoa(i)}) == nil {
			got++
		}
	}
	require.Equal(t, 70, got, "seven times what is free")
	for range 6 {
		require.NoError(t, take(store.Share{Credential: "other", Part: "a"}))
	}
	require.NoError(t, take(store.Share{Credential: "other", Part: "b"}))
	require.Error(t, take(store.Share{Credential: "low", Part: "0"}))
}

func TestUnitsAreGivenInTurnBetweenCredentials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Limit{Most: 1, Wait: Forever})
		u, err := l.Take(t.Context(), store.Share{Credential: "low", Part: "0"}, nil)
		require.NoError(t, err)
		var order []string
		var group sync.WaitGroup
		for _, who := range []store.Share{{Credential: "low", Part: "1"}, {Credential: "low", Part: "2"}, {Credential: "low", Part: "1"}, {Credential: "b", Part: "1"}, {Credential: "b", Part: "1"}} {
			group.Go(func() {
				_ = l.Do(t.Context(), who, func() error { order = append(order, who.Credential+who.Part); return nil })
			})
			synctest.Wait()
		}
		u.Release()
		group.Wait()
		require.Equal(t, []string{"low1", "b1", "low2", "b1", "low1"}, order)
		requireIdle(t, l)
	})
}

// Who has shown a key from an address gets more than strangers there, but not all.
func TestAKnownAddressLeavesUnitsToOthers(t *testing.T) {
	t.Parallel()
	l := New(Limit{Most: 100, Each: 10})
	for range 75 {
		_, err := l.Take(t.Context(), store.Share{Part: "office", Trusted: true}, nil)
		require.NoError(t, err)
	}
	_, err := l.Take(t.Context(), store.Share{Part: "office", Trusted: true}, nil)
	require.Error(t, err)
	for range 10 {
		_, err := l.Take(t.Context(), store.Share{Part: "stranger"}, nil)
		require.NoError(t, err)
	}
}

func TestUnitsThatNobodyWaitsForAreNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueued(1)
		gone := errors.New("gone")
		for range 100 {
			require.NoError(t, <-q.ask(t.Context(), "a"))
			ctx, cancel := context.WithCancelCause(t.Context())
			left := q.ask(ctx, "b")
			next := q.ask(t.Context(), "c")
			q.group.Go(func() { cancel(gone) }) // while the unit comes
			q.giveBack("a")
			if err := <-left; err == nil {
				q.giveBack("b")
			} else {
				require.ErrorIs(t, err, gone)
			}
			require.NoError(t, <-next)
			q.giveBack("c")
			q.group.Wait()
			requireIdle(t, q.Limiter)
			require.Zero(t, q.waiting)
			require.Zero(t, q.taken)
		}
	})
}

// A unit that comes while its client leaves is given back.
func TestAUnitOfAClientThatLeftIsGivenBack(t *testing.T) {
	t.Parallel()
	l := New(Limit{Most: 1, Wait: Forever})
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	u := &Unit{l: l, share: l.shareOf(store.Share{Part: "b"}), ready: make(chan struct{})}
	l.give(u)
	next := &Unit{l: l, share: l.shareOf(store.Share{Part: "c"})}
	l.queue(next)
	_, err := l.leave(ctx, u)
	require.ErrorIs(t, err, gone)
	require.True(t, next.held)
	next.Release()
	require.Zero(t, l.taken)
	requireIdle(t, l)
}

func TestWaitersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueued(1)
		require.NoError(t, <-q.ask(t.Context(), "a"))
		ctx, cancel := context.WithCancelCause(t.Context())
		defer q.group.Wait()
		defer cancel(nil)
		for range queueLength {
			q.group.Go(func() {
				if u, err := q.Take(ctx, store.Share{Part: "greedy"}, nil); err == nil {
					u.Release()
				}
			})
		}
		synctest.Wait()
		require.Equal(t, queueLength*3/4, q.Counts().Waiting)
		waits := q.ask(t.Context(), "other")
		q.giveBack("a")
		synctest.Wait()
		require.NoError(t, <-waits, "among the others of greedy")
	})
}

func TestALimitWithoutKeysIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Limit{Most: 1, Each: 1, Wait: time.Second, Queue: 2, Refusal: store.Error{Code: store.Conflict, Message: "no"}})
		var order []int
		var wg sync.WaitGroup
		var errs [4]error
		for i := range errs {
			wg.Go(func() {
				errs[i] = l.Do(t.Context(), store.Share{}, func() error {
					order = append(order, i)
					<-time.After(300 * time.Millisecond)
					return nil
				})
			})
			synctest.Wait()
		}
		wg.Wait()
		require.Equal(t, []int{0, 1, 2}, order)
		require.Equal(t, []error{nil, nil, nil}, errs[:3])
		require.EqualError(t, errs[3], "conflict: no", "two may wait")
	})
}

func TestTheOldestOfTheKeyThatHoldsMostIsCut(t *testing.T) {
	t.Parallel()
	l := New(Limit{Rule: "test", Most: 4, Each: 3})
	var cut []string
	take := func(who string) (*Unit, error) {
		if who == "" {
			return l.Take(t.Context(), store.Share{}, nil)
		}
		return l.Take(t.Context(), store.Share{Part: who}, func(error) { cut = append(cut, who) })
	}
	take1 := func(who string) *Unit {
		u, err := take(who)
		require.NoError(t, err)
		return u
	}
	a1, b1 := take1("a"), take1("b")
	take1("b")
	known := take1("")
	take1("c")
	require.Equal(t, []string{"b"}, cut)
	b1.Release() // the request that was cut off ends; its unit is the other's
	require.Equal(t, 4, l.taken)
	a1.Release()
	take1("b")
	take1("d")
	require.Equal(t, []string{"b", "b"}, cut)
	known.Release()
	var all []*Unit
	for range 4 {
		all = append(all, take1(""))
	}
	require.Equal(t, 4, l.none.held.n, "those without a key have taken all")
	_, err := take("e")
	require.Error(t, err, "and are not cut off")
	_, err = take("")
	require.Error(t, err)
	for _, u := range all {
		u.Release()
	}
	require.Zero(t, l.taken)
	for range 3 {
		take1("f")
	}
	_, err = take("f")
	require.Error(t, err, "a key has its limit")
}

// Those who have shown no credential have a part together, and wait in the same line.
func TestGuestsHaveAPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Limit{Most: 4, AnonymousPart: 4, Wait: Forever, Queue: queueLength})
		first, err := l.Take(t.Context(), store.Share{Part: "a"}, nil)
		require.NoError(t, err)
		var anonymous []*Unit
		var group sync.WaitGroup
		for _, who := range []string{"a", "b", "c"} {
			group.Go(func() {
				u, err := l.Take(t.Context(), store.Share{Part: who}, nil)
				require.NoError(t, err)
				anonymous = append(anonymous, u)
			})
			synctest.Wait()
		}
		for range 3 {
			_, err := l.Take(t.Context(), store.Share{Credential: "key", Part: "w"}, nil)
			require.NoError(t, err, "at once")
		}
		l.Resize(6)
		require.Empty(t, anonymous)
		first.Release()
		for i := range 3 {
			synctest.Wait()
			require.Len(t, anonymous, i+1)
			anonymous[i].Release()
		}
		group.Wait()
		require.Equal(t, Counts{Most: 6, Held: 3, Peak: 4, QueuePeak: 3}, l.Counts())
	})
}

func TestALimiterIsResized(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Limit{Rule: "places", Most: 1, Wait: time.Second})
		var held []*Unit
		for range 3 {
			go func() {
				if u, err := l.Take(t.Context(), store.Share{}, nil); err == nil {
					held = append(held, u)
				}
			}()
			synctest.Wait()
		}
		require.Len(t, held, 1)
		l.Resize(2)
		synctest.Wait()
		require.Len(t, held, 2)
		l.Resize(1)
		held[0].Release()
		<-time.After(time.Second)
		synctest.Wait()
		require.Len(t, held, 2, "those that are held stay")
		require.Equal(t, Counts{Most: 1, Held: 1, Refused: 1, Expired: 1, Peak: 2, QueuePeak: 2}, l.Counts())
		require.Equal(t, 2, l.Settle().Peak)
		require.Zero(t, l.Counts().Peak)
	})
}

// Whatever callers do, no unit is lost, none is held twice, and nobody waits for a free one.
func TestNoUnitIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		limit := Limit{
			Most: rapid.IntRange(1, 6).Draw(rt, "most"), Fair: rapid.Bool().Draw(rt, "fair"), Each: rapid.IntRange(0, 3).Draw(rt, "each"),
			AnonymousPart: rapid.IntRange(0, 3).Draw(rt, "anonymous"), Wait: Forever, Queue: rapid.IntRange(1, 8).Draw(rt, "queue"),
		}
		who := rapid.Custom(func(t *rapid.T) store.Share {
			return store.Share{Credential: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "credential"), Part: rapid.SampledFrom([]string{"", "x", "y", "z"}).Draw(t, "part")}
		})
		synctest.Test(t, func(t *testing.T) {
			l := New(limit)
			type caller struct {
				cancel context.CancelCauseFunc
				ended  chan error
				unit   *Unit
			}
			var waiting, holding []*caller
			settle := func() {
				synctest.Wait()
				for _, c := range slices.Clone(waiting) {
					select {
					case err := <-c.ended:
						waiting = slices.DeleteFunc(waiting, func(other *caller) bool { return other == c })
						if err == nil {
							holding = append(holding, c)
						}
					default:
					}
				}
				got := l.Counts()
				require.Equal(rt, len(waiting), got.Waiting)
				require.Equal(rt, len(holding), got.Held)
				require.LessOrEqual(rt, got.Waiting, limit.Queue)
				l.mu.Lock()
				if l.taken < l.most && l.waiting > 0 {
					require.Nil(rt, l.first(), "nobody waits for a unit that it may have")
				}
				l.mu.Unlock()
			}
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				switch rapid.IntRange(0, 4).Draw(rt, "step") {
				case 0, 1:
					ctx, cancel := context.WithCancelCause(t.Context())
					c := &caller{cancel: cancel, ended: make(chan error, 1)}
					share := who.Draw(rt, "who")
					waiting = append(waiting, c)
					go func() {
						var err error
						c.unit, err = l.Take(ctx, share, nil)
						c.ended <- err
					}()
				case 2:
					if len(holding) > 0 {
						i := rapid.IntRange(0, len(holding)-1).Draw(rt, "which")
						holding[i].unit.Release()
						holding = slices.Delete(holding, i, i+1)
					}
				case 3:
					if len(waiting) > 0 {
						waiting[rapid.IntRange(0, len(waiting)-1).Draw(rt, "which")].cancel(nil)
					}
				case 4:
					l.Resize(rapid.IntRange(1, 6).Draw(rt, "most"))
				}
				settle()
			}
			for len(holding)+len(waiting) > 0 {
				for _, c := range holding {
					c.unit.Release()
				}
				holding = nil
				for _, c := range waiting {
					c.cancel(nil)
				}
				settle()
			}
			requireIdle(rt, l)
			require.Empty(rt, l.line)
			require.Empty(rt, l.anonymousLine)
		})
	})
}

// requireIdle checks that nobody holds a unit or waits for one.
func requireIdle(t require.TestingT, l *Limiter) {
	for who, s := range l.shares {
		require.True(t, s.idle && s.listed && s.all.active+s.all.held+s.all.waiting == 0, who)
	}
	require.Len(t, l.idle, len(l.shares))
}

// Idle shares are remembered, but not more than maxIdle.
func TestIdleSharesAreForgotten(t *testing.T) {
	t.Parallel()
	l := New(Limit{Most: 10, Fair: true})
	held, err := l.Take(t.Context(), store.Share{Credential: "key", Part: "held"}, nil)
	require.NoError(t, err)
	for i := range 2 * maxIdle {
		u, err := l.Take(t.Context(), store.Share{Credential: "key", Part: strconv.Itoa(i)}, nil)
		require.NoError(t, err)
		u.Release()
		u, err = l.Take(t.Context(), store.Share{Credential: strconv.Itoa(i), Part: "w"}, nil)
		require.NoError(t, err)
		u.Release()
	}
	require.Len(t, l.shares, maxIdle+1)
	require.LessOrEqual(t, len(l.all), maxIdle+1)
	require.Equal(t, maxIdle/2+1, l.all["key"].shares)
	held.Release()
	requireIdle(t, l)
}
