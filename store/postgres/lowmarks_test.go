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
		l.end(l.begin(), marks{allPlatforms: 10})
		return l, &now
	}
	t.Run("what was claimed first is the mark", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		s := l.begin()
		require.Equal(t, marks{allPlatforms: 10}, s.from)
		require.True(t, s.below)
	})
	t.Run("a mark rises with claims and not with none", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		l.end(l.begin(), marks{allPlatforms: 20, onlyIOS: 5})
		l.end(l.begin(), marks{})
		require.Equal(t, marks{allPlatforms: 20, onlyIOS: 5}, l.begin().from)
		l.end(l.begin(), marks{allPlatforms: 15})
		require.Equal(t, int64(20), l.begin().from[allPlatforms], "two batches under way end in any order")
	})
	t.Run("a build that overtakes lowers it, also against a scan under way", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		under := l.begin()
		l.lower(4)
		l.end(under, marks{allPlatforms: 30})
		require.Equal(t, int64(4), l.begin().from[allPlatforms])
		l.lower(99)
		require.Equal(t, int64(4), l.begin().from[allPlatforms])
	})
	t.Run("a batch that failed puts back what it had locked", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		failing, other := l.begin(), l.begin()
		l.end(l.begin(), marks{allPlatforms: 50})
		l.undo(failing)
		l.end(other, marks{allPlatforms: 40})
		require.Equal(t, int64(10), l.begin().from[allPlatforms])
	})
}

func TestLooksBelowTheMarks(t *testing.T) {
	t.Parallel()
	setup := func() (*lowMarks, *time.Time) {
		now := time.Unix(1000, 0)
		l := &lowMarks{clock: func() time.Time { return now }}
		l.end(l.begin(), marks{allPlatforms: 10, onlyIOS: 30})
		return l, &now
	}
	t.Run("find what another controller put back", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		look, below, due := l.beginLook()
		require.True(t, due)
		require.Equal(t, int64(30), below)
		under := l.begin()
		l.endLook(look, below, marks{onlyIOS: 3}, nil)
		l.end(under, marks{allPlatforms: 99})
		require.Equal(t, marks{allPlatforms: 3, onlyIOS: 3, onlyAndroid: 30}, l.begin().from)
	})
	t.Run("mark what nobody has claimed from", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		look, below, _ := l.beginLook()
		l.endLook(look, below, marks{}, nil)
		require.Equal(t, marks{30, 30, 30}, l.begin().from)
	})
	t.Run("do not raise marks that were lowered meanwhile", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		look, below, _ := l.beginLook()
		l.lower(7)
		l.endLook(look, below, marks{}, nil)
		require.Equal(t, marks{allPlatforms: 7, onlyIOS: 7}, l.begin().from)
	})
	t.Run("rest while they are slow, and claims stay above the marks", func(t *testing.T) {
		t.Parallel()
		l, now := setup()
		look, below, _ := l.beginLook()
		*now = now.Add(time.Second)
		l.endLook(look, below, marks{}, nil)
		require.False(t, l.begin().below)
		_, _, due := l.beginLook()
		require.False(t, due)
		*now = now.Add(lookPause * time.Second)
		look, below, due = l.beginLook()
		require.True(t, due)
		l.endLook(look, below, marks{}, nil)
		require.True(t, l.begin().below)
	})
	t.Run("that fail are slow", func(t *testing.T) {
		t.Parallel()
		l, _ := setup()
		look, below, _ := l.beginLook()
		l.endLook(look, below, marks{}, errSlow)
		require.Equal(t, marks{allPlatforms: 10, onlyIOS: 30}, l.begin().from)
		require.False(t, l.begin().below)
	})
}

func TestScanOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, allPlatforms, scanOf(nil))
	require.Equal(t, allPlatforms, scanOf([]store.Platform{store.Android, store.IOS}))
	require.Equal(t, onlyIOS, scanOf([]store.Platform{"amiga", store.IOS}))
	require.Equal(t, onlyAndroid, scanOf([]store.Platform{store.Android}))
}

func TestPendingHint(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	h := pendingHint{clock: func() time.Time { return now }}
	require.False(t, h.reserve(1, 1000), "nothing is known")
	h.counted(1000 - limitMargin - 2)
	require.False(t, h.reserve(3, 1000), "one too many")
	require.True(t, h.reserve(1, 1000))
	require.True(t, h.reserve(1, 1000))
	require.False(t, h.adding.TryLock(), "who counts waits for those that do not")
	require.False(t, h.reserve(1, 1000), "within the margin")
	h.release(1, false)
	require.True(t, h.reserve(1, 1000))
	h.release(1, true)
	h.release(1, true)
	require.True(t, h.adding.TryLock())
	h.adding.Unlock()
	h.counted(0)
	now = now.Add(hintAge + 1)
	require.False(t, h.reserve(1, 1000), "too old")
	h.counted(0)
	h.forget()
	require.False(t, h.reserve(1, 1000), "builds came back")
}
