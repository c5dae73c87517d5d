package throttle_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/throttle"
	"takt/store"
	"takt/store/storetest"
)

// faulty is a store that fails on demand.
type faulty struct {
	throttle.Store
	accept func(actions []store.Action) error

	wasRead func() // a rate was, and is not returned yet

	batches, reads atomic.Int64
	gate           chan struct{} // closed: writes may go on
}

func (f *faulty) Accept(ctx context.Context, actions []store.Action) ([]store.Acceptance, error) {
	f.batches.Add(1)
	if f.gate != nil {
		<-f.gate
	}
	if f.accept != nil {
		if err := f.accept(actions); err != nil {
			return nil, err
		}
	}
	return f.Store.Accept(ctx, actions)
}

func (f *faulty) Config(ctx context.Context, portal, action int64) (store.ThrottleConfig, error) {
	f.reads.Add(1)
	c, err := f.Store.Config(ctx, portal, action)
	if f.wasRead != nil {
		f.wasRead()
	}
	return c, err
}

func faultySetup(t *testing.T, f *faulty, cfg throttle.Config) *bundle {
	t.Helper()
	return setup(t, storetest.New(t), cfg, func(s throttle.Store) throttle.Store {
		f.Store = s
		return f
	})
}

func away() error { return &store.Error{Code: store.Unavailable, Message: "away"} }

func TestActionsThatComeTogetherAreCommittedTogether(t *testing.T) {
	t.Parallel()
	f := &faulty{gate: make(chan struct{})}
	b := faultySetup(t, f, throttle.Config{})
	b.rate(1, store.Day)
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			_, err := b.Accept(t.Context(), actionOf(1, i))
			if err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return f.batches.Load() >= 1 }, time.Minute, time.Millisecond)
	close(f.gate)
	wg.Wait()
	require.Less(t, f.batches.Load(), int64(100))
	var n int
	require.NoError(t, b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM action_executions`).Scan(&n))
	require.Equal(t, 300, n)
}

func TestMoreThanTheBufferIsRefused(t *testing.T) {
	t.Parallel()
	f := &faulty{gate: make(chan struct{})}
	b := faultySetup(t, f, throttle.Config{MaxBuffered: 10})
	b.rate(1, store.Day)
	answers := make(chan error, 200)
	for i := range cap(answers) {
		go func() {
			_, err := b.Accept(t.Context(), actionOf(1, i))
			answers <- err
		}()
	}
	err := <-answers
	require.Equal(t, store.Unavailable, store.CodeOf(err), "nobody else can be answered yet: %v", err)
	close(f.gate)
	taken := 0
	for range cap(answers) - 1 {
		if err := <-answers; err == nil {
			taken++
		} else {
			require.Equal(t, store.Unavailable, store.CodeOf(err))
		}
	}
	var n int
	require.NoError(t, b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM action_executions`).Scan(&n))
	require.Equal(t, taken, n, "who was refused left nothing behind")
}

func TestOneActionThatCannotBeWrittenFailsAlone(t *testing.T) {
	t.Parallel()
	f := &faulty{accept: func(actions []store.Action) error {
		for _, a := range actions {
			if strings.HasSuffix(a.CallbackID, "-7") {
				return errors.New("the database does not take this one")
			}
		}
		return nil
	}}
	b := faultySetup(t, f, throttle.Config{})
	b.rate(1, store.Day)
	errs := make([]error, 20)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = b.Accept(t.Context(), actionOf(1, i)) })
	}
	wg.Wait()
	for i, err := range errs {
		require.Equal(t, i == 7, err != nil, "%d: %v", i, err)
	}
}

func TestAnOutageIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	f := &faulty{accept: func([]store.Action) error { return away() }}
	b := faultySetup(t, f, throttle.Config{})
	b.rate(1, store.Day)
	_, err := b.Accept(t.Context(), actionOf(1, 1))
	require.Equal(t, store.Unavailable, store.CodeOf(err))
}

func TestRatesAreRememberedUntilTheyChange(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	b := faultySetup(t, f, throttle.Config{})
	for range 3 {
		_, err := b.Cache.Config(t.Context(), portal, 1)
		require.Equal(t, store.NotFound, store.CodeOf(err))
	}
	require.EqualValues(t, 3, f.reads.Load(), "that there is none is not remembered")
	b.rate(5, store.Day)
	for range 10 {
		c, err := b.Cache.Config(t.Context(), portal, 1)
		require.NoError(t, err)
		require.Equal(t, 5, c.MaxThroughput)
	}
	require.EqualValues(t, 4, f.reads.Load())
	_, err := f.PutConfig(t.Context(), store.ThrottleConfig{PortalID: portal, ActionID: 1, MaxThroughput: 6, TimePeriod: 1, TimeUnit: store.Day})
	require.NoError(t, err)
	b.bus.PublishRemote("throttle:config", "9001:1", 0) // as the listener does
	require.Eventually(t, func() bool {
		c, err := b.Cache.Config(t.Context(), portal, 1)
		return err == nil && c.MaxThroughput == 6
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, b.DeleteConfig(t.Context(), portal, 1))
	_, err = b.Accept(t.Context(), actionOf(1, 1))
	require.Equal(t, store.InvalidArgument, store.CodeOf(err))
}

func TestWhoAsksForARateAtOnceReadsItTogether(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	f := &faulty{wasRead: func() { <-gate }}
	b := faultySetup(t, f, throttle.Config{})
	b.rate(5, store.Day)
	var asking, answered sync.WaitGroup
	for range 300 {
		asking.Add(1)
		answered.Go(func() {
			asking.Done()
			if _, err := b.Cache.Config(t.Context(), portal, 1); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	close(gate)
	answered.Wait()
	require.Less(t, f.reads.Load(), int64(100), "not one for each") // about three on a quiet machine
}

func TestARateThatChangesWhileItIsReadIsNotRemembered(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	b := faultySetup(t, f, throttle.Config{})
	b.rate(5, store.Day)
	f.wasRead = sync.OnceFunc(func() { b.rate(6, store.Day) })
	for _, want := range []int{5, 6, 6} {
		c, err := b.Cache.Config(t.Context(), portal, 1)
		require.NoError(t, err)
		require.Equal(t, want, c.MaxThroughput)
	}
	require.EqualValues(t, 2, f.reads.Load())
}
