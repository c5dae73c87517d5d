package batching_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/store/batching"
	"takt/store/storetest/faketime"
)

// disk records what is committed. It fails the test when too much is committed at once.
type disk struct {
	mu      sync.Mutex
	done    map[int]int // how often each item was committed
	running int
	peak    int // batches at once
	most    int // items in a batch
	batches int
	faulty  map[int]bool
	fail    func(batch int) error
	took    time.Duration // of a commit
}

func (d *disk) commit(items []int) error {
	d.mu.Lock()
	d.batches++
	d.running++
	d.peak, d.most = max(d.peak, d.running), max(d.most, len(items))
	batch := d.batches
	d.mu.Unlock()
	faketime.Pass(d.took)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	if d.fail != nil {
		if err := d.fail(batch); err != nil {
			return err
		}
	}
	for _, i := range items {
		if d.faulty[i] {
			return errRefused
		}
	}
	for _, i := range items {
		d.done[i]++
	}
	return nil
}

func (d *disk) has(i int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done[i]
}

// TestNobodyIsToldAnythingUntrue lets callers come, and leave, at any time, with faulty
// items, outages and a Close.
func TestNobodyIsToldAnythingUntrue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		pace := batching.Pace{
			Parallel: rapid.IntRange(1, 3).Draw(r, "parallel"), Most: rapid.IntRange(1, 20).Draw(r, "most"),
			Linger: rapid.SampledFrom([]time.Duration{0, 5 * time.Millisecond}).Draw(r, "linger"), Return: rapid.SampledFrom([]time.Duration{0, time.Millisecond}).Draw(r, "return"),
		}
		full := rapid.IntRange(0, 30).Draw(r, "full")
		n := rapid.IntRange(1, 80).Draw(r, "callers")
		come := rapid.SliceOfN(rapid.IntRange(0, 40), n, n).Draw(r, "come after ms")
		leave := rapid.SliceOfN(rapid.IntRange(1, 30), n, n).Draw(r, "leave after ms")
		stay := rapid.SliceOfN(rapid.Bool(), n, n).Draw(r, "stay")
		closed := rapid.IntRange(1, 200).Draw(r, "closed after ms")
		outage := rapid.IntRange(1, 10).Draw(r, "outage at batch")
		d := &disk{done: map[int]int{}, faulty: map[int]bool{}, took: time.Duration(rapid.IntRange(0, 15).Draw(r, "commit takes ms")) * time.Millisecond}
		d.fail = func(batch int) error {
			if batch%10 == outage%10 {
				return errOutage
			}
			return nil
		}
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, n-1), 0, 3).Draw(r, "faulty") {
			d.faulty[i] = true
		}
		errs, after := make([]error, n), make([]int, n)
		synctest.Test(t, func(t *testing.T) {
			c := batching.New(batching.Config[int]{Commit: d.commit, Refused: isRefused, Full: full, Pace: pace})
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					faketime.Pass(time.Duration(come[i]) * time.Millisecond)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(leave[i])*time.Millisecond)
					defer cancel()
					do := c.Do
					if stay[i] {
						do = c.Stay
					}
					errs[i] = do(ctx, i)
					after[i] = d.has(i)
				})
			}
			faketime.Pass(time.Duration(closed) * time.Millisecond)
			c.Close()
			ended := d.batches
			require.ErrorIs(t, c.Do(t.Context(), n), batching.ErrClosed)
			wg.Wait()
			require.Equal(t, ended, d.batches, "nothing is committed after Close")
			require.Zero(t, c.Waiting())
		})
		require.LessOrEqual(r, d.peak, pace.Parallel)
		require.LessOrEqual(r, d.most, pace.Most)
		for i, err := range errs {
			switch {
			case err == nil:
				require.Equal(r, 1, after[i], "item %d is durable, once, before its caller is told", i)
			case errors.Is(err, batching.ErrUnknown):
				require.False(r, stay[i], "item %d was in a batch: its caller waits for the end", i)
				require.LessOrEqual(r, d.has(i), 1)
			default:
				require.Zero(r, d.has(i), "item %d was refused: %v", i, err)
			}
			require.False(r, isRefused(err) && !d.faulty[i], "item %d is not faulty: %v", i, err)
			require.False(r, errors.Is(err, batching.ErrFull) && full == 0)
		}
	})
}

func TestItemsShareTheNextBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int64
		gate := make(chan error)
		c := batching.New(batching.Config[struct{}]{Commit: func([]struct{}) error {
			begun.Add(1)
			return <-gate
		}})
		first, others := make(chan error, 1), make(chan error, 10)
		go func() { first <- c.Do(t.Context(), struct{}{}) }()
		synctest.Wait()
		for range 10 { // the batch that runs does not cover them
			go func() { others <- c.Wait(struct{}{}) }()
		}
		synctest.Wait()
		require.EqualValues(t, 1, begun.Load(), "one at a time")
		require.Equal(t, 10, c.Waiting())
		gate <- nil
		require.NoError(t, <-first)
		gate <- errOutage
		for range 10 {
			require.ErrorIs(t, <-others, errOutage, "its failure is everybody's")
		}
		require.EqualValues(t, 2, begun.Load(), "ten waited for one")
	})
}

func TestAnItemWaitsForOthersButNotLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		c := batching.New(batching.Config[int]{
			Commit: func([]int) error { <-gate; return nil }, Full: 9, Pace: batching.Pace{Return: time.Millisecond},
		})
		errs := make(chan error, 10)
		for i := range cap(errs) {
			go func() { errs <- c.Do(t.Context(), i) }()
			synctest.Wait()
		}
		require.ErrorIs(t, c.Do(t.Context(), 10), batching.ErrFull, "nine wait for the first")
		close(gate)
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.NoError(t, c.Do(ctx, 11))
		require.Equal(t, time.Millisecond, time.Since(begun), "the others are not back")
	})
}

// A wait that is over sooner replaces one that was begun while a batch ran.
func TestAShorterWaitReplacesALongerOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		c := batching.New(batching.Config[int]{
			Commit: func([]int) error { <-gate; return nil },
			Pace:   batching.Pace{Parallel: 2, Linger: 5 * time.Millisecond, Return: time.Millisecond, Alone: 96},
		})
		done := make(chan error, 10)
		comes := func(n int) {
			for i := range n {
				go func() { done <- c.Do(t.Context(), i) }()
				synctest.Wait()
			}
		}
		comes(9)
		gate <- struct{}{} // of the first; the others share a batch
		synctest.Wait()
		comes(1)
		gate <- struct{}{}
		begun := time.Now()
		close(gate)
		for range cap(done) {
			require.NoError(t, <-done)
		}
		require.Equal(t, time.Millisecond, time.Since(begun), "the others are not back")
	})
}

func TestACrashFailsItsBatchOnly(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]func(){
		"panic":  func() { panic("broken") },
		"Goexit": func() { (&testing.T{}).SkipNow() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := batching.New(batching.Config[int]{Commit: func(items []int) error {
				if items[0] == 13 {
					crash()
				}
				return nil
			}})
			require.ErrorIs(t, c.Do(t.Context(), 13), batching.ErrUnknown)
			require.NoError(t, c.Do(t.Context(), 1))
		})
	}
}

// TestPace checks sizes and waits: what a Pace says to a queue of a length.
func TestPace(t *testing.T) {
	t.Parallel()
	type step struct {
		ended, waiting int
		late           bool
		n              int
		wait           time.Duration
	}
	const linger, back = 5 * time.Millisecond, time.Millisecond
	for name, c := range map[string]struct {
		pace  batching.Pace
		steps []step
	}{
		"one at a time, all that wait": {batching.Pace{}, []step{
			{waiting: 1, n: 1}, {waiting: 7}, {ended: 1, waiting: 7, n: 7}, {ended: 7},
		}},
		"no more than the most": {batching.Pace{Parallel: 2, Most: 4}, []step{
			{waiting: 9, n: 4}, {waiting: 5, n: 4}, {waiting: 1}, {ended: 4, waiting: 1, n: 1},
		}},
		"two equal shares": {batching.Pace{Parallel: 2, Most: 500, Least: 16}, []step{
			{waiting: 100, n: 50}, {waiting: 50, n: 50},
		}},
		"small batches are not split": {batching.Pace{Parallel: 2, Most: 500, Least: 16}, []step{
			{waiting: 20, n: 16}, {waiting: 4, n: 4},
		}},
		"the first comes at once, then batches fill": {batching.Pace{Parallel: 2, Most: 500, Least: 16, Linger: linger, Return: back}, []step{
			{waiting: 64, n: 32},
			{waiting: 10, wait: linger},
			{waiting: 10, late: true, n: 16 - 6},
			{ended: 32, waiting: 5, wait: linger},
			{ended: 10, waiting: 5, wait: back},
			{waiting: 5, late: true, n: 5},
		}},
		"up to 96 share one batch, and a single one waits in vain but once": {batching.Pace{Parallel: 2, Most: 256, Linger: linger, Return: back, Alone: 96, Few: 16}, []step{
			{waiting: 1, n: 1},
			{waiting: 63, wait: 4 * linger},
			{ended: 1, waiting: 63, n: 63},
			{ended: 63, waiting: 5, wait: back},
			{waiting: 60, n: 60},
			{ended: 60, waiting: 1, wait: back},
			{waiting: 1, late: true, n: 1},
			{ended: 1, waiting: 1, n: 1},
		}},
		"a slow one does not hold up others": {batching.Pace{Parallel: 2, Most: 256, Linger: linger, Return: back, Alone: 96, Few: 16}, []step{
			{waiting: 50, n: 50}, {waiting: 3, wait: 4 * linger}, {waiting: 3, late: true, n: 3}, {waiting: 3},
		}},
		"few take two": {batching.Pace{Parallel: 2, Most: 256, Linger: linger, Return: back, Alone: 96, Few: 16}, []step{
			{waiting: 1, n: 1}, {waiting: 1, n: 1}, {waiting: 1},
		}},
		"few don't wait for those that were just answered": {batching.Pace{Parallel: 2, Most: 256, Return: back, Alone: 96, Few: 16}, []step{
			{waiting: 9, n: 9}, {ended: 9, waiting: 3, n: 3},
		}},
		"more than 96 take two": {batching.Pace{Parallel: 2, Most: 256, Linger: linger, Return: back, Alone: 96, Few: 16}, []step{
			{waiting: 200, n: 200}, {waiting: 100, wait: linger}, {waiting: 160, n: 160},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := c.pace
			for i, s := range c.steps {
				if s.ended > 0 {
					p.Ended(s.ended)
				}
				n, wait := p.Next(s.waiting, s.late)
				require.Equal(t, s.n, n, "step %d", i)
				require.Equal(t, s.wait, wait, "step %d", i)
			}
		})
	}
}
