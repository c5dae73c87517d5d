package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestLowMarks(t *testing.T) {
	t.Parallel()
	setup := func() (*lowMarks, *time.Time) {
		now := time.Unix(1000, 0)
		l := &lowMarks{clock: func() time.Time { return now }}
		l.end(l.begin(), marks{laneAll: 10})
		return l, &now
	}
	t.Run("the first scan is full and what it claimed first is the mark", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		s := l.begin()
		require.False(t, s.full)
		require.Equal(t, marks{laneAll: 10}, s.from)
	})
	t.Run("a mark rises with claims and not with none", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		l.end(l.begin(), marks{laneAll: 20, laneIOS: 5})
		l.end(l.begin(), marks{})
		require.Equal(t, marks{laneAll: 20, laneIOS: 5}, l.begin().from)
		l.end(l.begin(), marks{laneAll: 15})
		require.Equal(t, int64(20), l.begin().from[laneAll], "two batches in flight end in any order")
	})
	t.Run("a build that overtakes lowers it, also against a scan under way", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		under := l.begin()
		l.lower(4)
		l.end(under, marks{laneAll: 30})
		require.Equal(t, int64(4), l.begin().from[laneAll])
		l.lower(99)
		require.Equal(t, int64(4), l.begin().from[laneAll])
	})
	t.Run("a full scan comes every second and finds a lower head", func(t *testing.T) {
		t.Parallel()
		l, now := setup()
		*now = now.Add(fullScan)
		s := l.begin()
		require.True(t, s.full)
		require.Equal(t, marks{}, s.from)
		require.False(t, l.begin().full, "one at a time")
		l.end(s, marks{laneAll: 3})
		require.Equal(t, int64(3), l.begin().from[laneAll])
	})
	t.Run("a slow full scan rests longer", func(t *testing.T) {
		t.Parallel()
		l, now := setup()
		*now = now.Add(fullScan)
		s := l.begin()
		*now = now.Add(time.Second)
		l.end(s, marks{})
		*now = now.Add(10 * time.Second)
		require.False(t, l.begin().full)
		*now = now.Add(10 * time.Second)
		require.True(t, l.begin().full)
	})
	t.Run("builds that come back make the next scan full", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		l.reset()
		require.True(t, l.begin().full)
	})
}

func TestLaneOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, laneAll, laneOf(nil))
	require.Equal(t, laneAll, laneOf([]store.Platform{store.Android, store.IOS}))
	require.Equal(t, laneIOS, laneOf([]store.Platform{"amiga", store.IOS}))
	require.Equal(t, laneAndroid, laneOf([]store.Platform{store.Android}))
}

func TestPendingHint(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	h := pendingHint{clock: func() time.Time { return now }}
	require.False(t, h.reserve(1000), "nothing is known")
	h.counted(1000 - limitMargin - 1)
	require.True(t, h.reserve(1000))
	require.True(t, h.reserve(1000))
	require.False(t, h.reserve(1000), "within the margin")
	h.release()
	require.True(t, h.reserve(1000))
	h.counted(0)
	now = now.Add(hintAge + 1)
	require.False(t, h.reserve(1000), "too old")
	h.counted(0)
	h.forget()
	require.False(t, h.reserve(1000), "builds came back")
}
