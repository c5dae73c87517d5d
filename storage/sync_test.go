package storage

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestSyncsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSharedSync()
		var begun atomic.Int64
		gate := make(chan struct{})
		failed := errors.New("no disk")
		slow := func() error {
			if begun.Add(1) == 2 {
				<-gate
				return failed
			}
			<-gate
			return nil
		}
		var wg sync.WaitGroup
		first := make(chan error, 1)
		wg.Go(func() { first <- s.do(slow) })
		synctest.Wait()
		errs := make(chan error, 10)
		for range 10 { // changed something after the first sync began: it does not cover them
			wg.Go(func() { errs <- s.do(slow) })
		}
		synctest.Wait()
		require.EqualValues(t, 1, begun.Load(), "one at a time")
		gate <- struct{}{}
		require.NoError(t, <-first)
		synctest.Wait()
		require.EqualValues(t, 2, begun.Load())
		gate <- struct{}{}
		for range 10 {
			require.ErrorIs(t, <-errs, failed, "its failure is everybody's")
		}
		wg.Wait()
		require.EqualValues(t, 2, begun.Load(), "ten waited for one")
	})
}
