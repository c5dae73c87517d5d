package edge

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// queued takes turns in the background. It notes in which order they came.
type queued struct {
	*turns
	order []string
	group sync.WaitGroup
	mu    sync.Mutex // guards order
}

func (q *queued) ask(ctx context.Context, who string) <-chan error {
	ended := make(chan error, 1)
	q.group.Go(func() {
		err := q.take(ctx, who)
		if err == nil {
			q.mu.Lock()
			q.order = append(q.order, who)
			q.mu.Unlock()
		}
		ended <- err
	})
	synctest.Wait()
	return ended
}

func TestTurnsAreGivenInTurnBetweenKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queued{turns: newTurns("t", 1)}
		require.NoError(t, q.take(t.Context(), "a"))
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
			require.Len(t, q.order, i+1)
			require.Equal(t, next, q.order[i], "%v", q.order)
			holder = next
		}
		q.giveBack(holder)
		q.group.Wait()
		require.Empty(t, q.by)
		require.Zero(t, q.running)
	})
}

func TestAKeyLeavesTurnsToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queued{turns: newTurns("t", 100)}
		var refused []<-chan error
		for range 100 {
			refused = append(refused, q.ask(t.Context(), "greedy"))
		}
		require.Len(t, q.order, 75, "three times what is free")
		begin := time.Now()
		for range 10 {
			require.NoError(t, q.take(t.Context(), "other"))
		}
		require.Zero(t, time.Since(begin))
		for _, ended := range refused[75:] {
			err := <-ended
			e, ok := errors.AsType[*store.Error](err)
			require.True(t, ok)
			require.Equal(t, store.Overloaded, e.Code)
			require.Equal(t, 5*time.Second, e.RetryAfter)
		}
		require.Equal(t, 20*time.Second, time.Since(begin))
		q.group.Wait()
	})
}

func TestATurnThatComesWhileItsClientLeavesIsGivenBack(t *testing.T) {
	t.Parallel()
	q := newTurns("t", 1)
	require.NoError(t, q.take(t.Context(), "a"))
	w, err := q.enter("b")
	require.NoError(t, err)
	q.giveBack("a")
	<-w.ready
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	require.ErrorIs(t, q.leave(ctx, "b", w), gone)
	require.Zero(t, q.running)
	require.NoError(t, q.take(t.Context(), "c"))
	q.giveBack("c")
	require.Empty(t, q.by)
}

func TestTurnsThatNobodyWaitsForAreNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queued{turns: newTurns("t", 1)}
		gone := errors.New("gone")
		for range 100 {
			require.NoError(t, q.take(t.Context(), "a"))
			ctx, cancel := context.WithCancelCause(t.Context())
			left := q.ask(ctx, "b")
			next := q.ask(t.Context(), "c")
			q.group.Go(func() { cancel(gone) }) // while the turn comes
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
			require.Zero(t, q.running)
		}
	})
}

func TestWaitersForTurnsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queued{turns: newTurns("t", 1)}
		require.NoError(t, q.take(t.Context(), "a"))
		ctx, cancel := context.WithCancelCause(t.Context())
		defer q.group.Wait()
		defer cancel(nil)
		for range TurnQueue {
			q.group.Go(func() { _ = q.take(ctx, "greedy") })
		}
		synctest.Wait()
		require.Len(t, q.line, TurnQueue*3/4)
		waits := q.ask(t.Context(), "other")
		q.giveBack("a")
		synctest.Wait()
		q.giveBack("greedy")
		require.NoError(t, <-waits, "before the others of greedy")
	})
}
