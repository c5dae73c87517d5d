package edge

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// queued takes units of a Limiter in the background. It notes in which order they came.
type queued struct {
	*Limiter
	group    sync.WaitGroup
	mu       sync.Mutex // guards what follows
	order    []string
	releases map[string][]func()
}

func newQueued(most int) *queued {
	return &queued{Limiter: NewLimiter(transferLimit("t", most)), releases: map[string][]func(){}}
}

func (q *queued) ask(ctx context.Context, who string) <-chan error {
	ended := make(chan error, 1)
	q.group.Go(func() {
		release, err := q.Take(ctx, Share{Part: who}, nil)
		if err == nil {
			q.mu.Lock()
			q.order, q.releases[who] = append(q.order, who), append(q.releases[who], release)
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
	release := q.releases[who][0]
	q.releases[who] = q.releases[who][1:]
	q.mu.Unlock()
	release()
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
		require.Empty(t, q.by)
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
	l := NewLimiter(Limit{Most: 80, Fair: true})
	take := func(who Share) error {
		_, err := l.Take(t.Context(), who, nil)
		return err
	}
	got := 0
	for i := range 200 {
		if take(Share{Credential: "low", Part: strconv.Itoa(i)}) == nil {
			got++
		}
	}
	require.Equal(t, 70, got, "seven times what is free")
	for range 6 {
		require.NoError(t, take(Share{Credential: "other", Part: "a"}))
	}
	require.NoError(t, take(Share{Credential: "other", Part: "b"}))
	require.Error(t, take(Share{Credential: "low", Part: "0"}))
}

func TestUnitsAreGivenInTurnBetweenCredentials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Limit{Most: 1, Wait: Forever})
		release, err := l.Take(t.Context(), Share{Credential: "low", Part: "0"}, nil)
		require.NoError(t, err)
		var order []string
		var group sync.WaitGroup
		for _, who := range []Share{{Credential: "low", Part: "1"}, {Credential: "low", Part: "2"}, {Credential: "low", Part: "1"}, {Credential: "b", Part: "1"}, {Credential: "b", Part: "1"}} {
			group.Go(func() {
				_ = l.Do(t.Context(), who, func() error {
					order = append(order, who.Credential+who.Part)
					return nil
				})
			})
			synctest.Wait()
		}
		release()
		group.Wait()
		require.Equal(t, []string{"low1", "b1", "low2", "b1", "low1"}, order)
		require.Empty(t, l.by)
		require.Empty(t, l.all)
	})
}

// Who has shown a key from an address gets more than strangers there, but not all.
func TestAKnownAddressLeavesUnitsToOthers(t *testing.T) {
	t.Parallel()
	l := NewLimiter(Limit{Most: 100, Each: 10})
	for range 75 {
		_, err := l.Take(t.Context(), Share{Part: "office", Known: true}, nil)
		require.NoError(t, err)
	}
	_, err := l.Take(t.Context(), Share{Part: "office", Known: true}, nil)
	require.Error(t, err)
	for range 10 {
		_, err := l.Take(t.Context(), Share{Part: "stranger"}, nil)
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
			require.Empty(t, q.by)
			require.Empty(t, q.line)
			require.Zero(t, q.taken)
		}
	})
}

// A unit that comes while its client leaves is given back.
func TestAUnitOfAClientThatLeftIsGivenBack(t *testing.T) {
	t.Parallel()
	l := NewLimiter(Limit{Most: 1, Wait: Forever})
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	k := l.key(Share{Part: "b"})
	u := &unit{limitKey: k, ready: make(chan struct{})}
	l.give(u)
	require.ErrorIs(t, l.leave(ctx, u), gone)
	require.Zero(t, l.taken)
	require.NoError(t, l.Do(t.Context(), Share{Part: "c"}, func() error { return nil }))
	require.Empty(t, l.by)
}

func TestWaitersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueued(1)
		require.NoError(t, <-q.ask(t.Context(), "a"))
		ctx, cancel := context.WithCancelCause(t.Context())
		defer q.group.Wait()
		defer cancel(nil)
		for range TransferQueue {
			q.group.Go(func() {
				if release, err := q.Take(ctx, Share{Part: "greedy"}, nil); err == nil {
					release()
				}
			})
		}
		synctest.Wait()
		require.Len(t, q.line, TransferQueue*3/4)
		waits := q.ask(t.Context(), "other")
		q.giveBack("a")
		synctest.Wait()
		require.NoError(t, <-waits, "among the others of greedy")
	})
}

func TestALimitWithoutKeysIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Limit{Most: 1, Each: 1, Wait: time.Second, Queue: 2, Refusal: store.Error{Code: store.Conflict, Message: "no"}})
		var order []int
		var wg sync.WaitGroup
		var errs [4]error
		for i := range errs {
			wg.Go(func() {
				errs[i] = l.Do(t.Context(), Share{}, func() error {
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
	l := NewLimiter(Limit{Rule: "test", Most: 4, Each: 3})
	var cut []string
	take := func(who string) (func(), error) {
		if who == "" {
			return l.Take(t.Context(), Share{}, nil)
		}
		return l.Take(t.Context(), Share{Part: who}, func(error) { cut = append(cut, who) })
	}
	take1 := func(who string) func() {
		release, err := take(who)
		require.NoError(t, err)
		return release
	}
	a1, b1 := take1("a"), take1("b")
	take1("b")
	known := take1("")
	take1("c")
	require.Equal(t, []string{"b"}, cut)
	b1() // the request that was cut off ends; its unit is the other's
	require.Equal(t, 4, l.taken)
	a1()
	take1("b")
	take1("d")
	require.Equal(t, []string{"b", "b"}, cut)
	known()
	var all []func()
	for range 4 {
		all = append(all, take1(""))
	}
	require.Len(t, l.by, 1, "those without a key have taken all")
	_, err := take("e")
	require.Error(t, err, "and are not cut off")
	_, err = take("")
	require.Error(t, err)
	for _, release := range all {
		release()
	}
	require.Zero(t, l.taken)
	for range 3 {
		take1("f")
	}
	_, err = take("f")
	require.Error(t, err, "a key has its limit")
}
