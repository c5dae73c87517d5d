package batching_test

import (
	"errors"
	"math/bits"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/store/batching"
)

var (
	errRefused = errors.New("refused")
	errOutage  = errors.New("outage")
)

func isRefused(err error) bool { return errors.Is(err, errRefused) }

func TestIsolateFindsTheFaultyItems(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "items")
		faulty := rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 0, min(n, 4), rapid.ID[int]).Draw(t, "faulty")
		outage := rapid.IntRange(1, 100).Draw(t, "call that meets an outage") // often none
		items := make([]int, n)
		for i := range items {
			items[i] = i
		}
		var seen, done, refused []int
		calls := 0
		err := batching.Isolate(items, isRefused, func(part []int) error {
			if calls++; calls == outage {
				return errOutage
			}
			if slices.ContainsFunc(part, func(i int) bool { return slices.Contains(faulty, i) }) {
				return errRefused
			}
			done, seen = append(done, part...), append(seen, part...)
			return nil
		}, func(i int, cause error) error {
			require.ErrorIs(t, cause, errRefused)
			refused, seen = append(refused, i), append(seen, i)
			return nil
		})
		slices.Sort(faulty)
		require.True(t, slices.Equal(items[:len(seen)], seen), "in order, each once: %v", seen)
		require.Subset(t, append(faulty, -1), refused)
		require.LessOrEqual(t, calls, 1+2*bits.Len(uint(n-1))*len(faulty))
		if calls >= outage {
			require.ErrorIs(t, err, errOutage)
			require.Equal(t, outage, calls, "nothing is tried after it")
			return
		}
		require.NoError(t, err)
		require.Len(t, seen, n)
		require.Len(t, done, n-len(faulty), "only the faulty ones are refused")
	})
}

func TestIsolateStopsAtAnErrorOfAlone(t *testing.T) {
	t.Parallel()
	calls := 0
	err := batching.Isolate([]int{1, 2, 3, 4}, isRefused, func([]int) error {
		calls++
		return errRefused
	}, func(int, error) error { return errOutage })
	require.ErrorIs(t, err, errOutage)
	require.Equal(t, 3, calls, "four, two, and the first alone")
}
