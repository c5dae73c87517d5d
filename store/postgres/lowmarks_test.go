package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// marksAt returns marks, and their clock.
func marksAt() (*lowMarks, *time.Time) {
	now := time.Unix(1000, 0)
	l := &lowMarks{clock: func() time.Time { return now }}
	l.end(l.begin(false), marks{10, 30, 10})
	return l, &now
}

func TestLowMarks(t *testing.T) {
	t.Parallel()
	t.Run("what was claimed first is the mark", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		p := l.begin(false)
		require.Equal(t, marks{10, 30, 10}, p.from)
		require.Zero(t, p.whole, "builds may be pending below")
		p = l.begin(true)
		require.Zero(t, p.from)
		require.Equal(t, perKind[bool]{true, true, true}, p.whole)
	})
	t.Run("a mark rises with claims and not with none", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		l.end(l.begin(false), marks{20})
		require.Equal(t, marks{20, 30, 10}, l.begin(false).from)
		l.end(l.begin(false), marks{15})
		require.Equal(t, marks{20, 30, 10}, l.begin(false).from, "two batches under way end in any order")
	})
	t.Run("a scan from the start that finds a build below the mark lowers it", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		l.end(l.begin(true), marks{4})
		require.Equal(t, marks{4, 30, 10}, l.begin(false).from)
	})
	t.Run("a build that overtakes lowers it, also against a scan under way", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		under := l.begin(false)
		l.lower(4)
		l.end(under, marks{40, 40, 40})
		require.Equal(t, marks{4, 4, 4}, l.begin(false).from)
		l.lower(99)
		require.Equal(t, marks{4, 4, 4}, l.begin(false).from)
	})
	t.Run("a batch that failed puts back what it had locked", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		failing, other := l.begin(false), l.begin(false)
		l.end(l.begin(false), marks{50})
		l.undo(failing)
		l.end(other, marks{40})
		require.Equal(t, marks{10, 30, 10}, l.begin(false).from)
	})
}

func TestLooksBelowTheMarks(t *testing.T) {
	t.Parallel()
	t.Run("find what another controller put back", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		look, below, due := l.beginLook()
		require.True(t, due)
		require.Equal(t, int64(30), below)
		under := l.begin(false)
		l.endLook(look, below, marks{takesIOS: 3}, nil)
		l.end(under, marks{99, 99, 99})
		require.Equal(t, marks{3, 3, 30}, l.begin(false).from)
	})
	t.Run("mark what nobody has claimed from", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		look, below, _ := l.beginLook()
		l.endLook(look, below, marks{}, nil)
		require.Equal(t, marks{30, 30, 30}, l.begin(false).from)
	})
	t.Run("do not raise marks that were lowered meanwhile", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		look, below, _ := l.beginLook()
		l.lower(7)
		l.endLook(look, below, marks{}, nil)
		require.Equal(t, marks{7, 7, 7}, l.begin(false).from)
	})
	t.Run("rest while they are slow, and claims stay above the marks", func(t *testing.T) {
		t.Parallel()
		l, now := marksAt()
		look, below, _ := l.beginLook()
		*now = now.Add(time.Second)
		l.endLook(look, below, marks{10, 30, 10}, nil)
		p := l.begin(true)
		require.Equal(t, marks{10, 30, 10}, p.from)
		require.Equal(t, perKind[bool]{true, true, true}, p.whole, "nothing is looked for below")
		_, _, due := l.beginLook()
		require.False(t, due)
		*now = now.Add(lookPause * time.Second)
		look, below, due = l.beginLook()
		require.True(t, due)
		l.endLook(look, below, marks{}, nil)
		require.Zero(t, l.begin(true).from)
	})
	t.Run("that fail are slow", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		look, below, _ := l.beginLook()
		l.endLook(look, below, marks{}, errSlow)
		require.Equal(t, marks{10, 30, 10}, l.begin(true).from)
	})
}

func TestPendingHint(t *testing.T) {
	t.Parallel()
	var h pendingHint
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
	h.at = h.at.Add(-hintAge)
	require.False(t, h.reserve(1, 1000), "too old")
	h.counted(0)
	h.forget()
	require.False(t, h.reserve(1, 1000), "builds came back")
}
