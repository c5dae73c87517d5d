package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// marksAt returns marks, and their clock.
func marksAt() (*watermarks, *time.Time) {
	now := time.Unix(1000, 0)
	l := &watermarks{clock: func() time.Time { return now }}
	l.end(l.begin(false), claimed(10, 30))
	return l, &now
}

// claimed are claims of single classes, at the first positions given.
func claimed(first ...int64) (all []*claim) {
	for i, position := range first {
		all = append(all, &claim{classSet: classSet{ids: []int32{int32(i + 1)}}, first: position})
	}
	return all
}

var both = []int32{1, 2}

func TestLowMarks(t *testing.T) {
	t.Parallel()
	t.Run("what was claimed first is the mark", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		p := l.begin(false)
		require.Equal(t, marks{1: 10, 2: 30}, p.marks)
		require.False(t, p.whole(both), "builds may be pending below")
		p = l.begin(true)
		require.Zero(t, p.from(both))
		require.True(t, p.whole(both))
	})
	t.Run("a mark rises with claims and not with none", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		l.end(l.begin(false), claimed(20))
		require.Equal(t, marks{1: 20, 2: 30}, l.begin(false).marks)
		l.end(l.begin(false), claimed(15))
		require.Equal(t, marks{1: 20, 2: 30}, l.begin(false).marks, "two batches under way end in any order")
	})
	t.Run("a scan from the start that finds a build below the mark lowers it", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		l.end(l.begin(true), claimed(4))
		require.Equal(t, marks{1: 4, 2: 30}, l.begin(false).marks)
	})
	t.Run("workers of several classes start where the first of these begins", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		require.EqualValues(t, 10, l.begin(false).from(both))
		require.Zero(t, l.begin(false).from([]int32{1, 3}), "of the third nothing is known")
		l.end(l.begin(false), []*claim{{classSet: classSet{ids: []int32{2}}, first: 35}, {classSet: classSet{ids: []int32{1, 2, 3}}, first: 40}})
		require.Equal(t, marks{1: 40, 2: 35, 3: 40}, l.begin(false).marks, "what was locked for others may be pending again")
	})
	t.Run("a build that overtakes lowers it, also against a scan under way", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		under := l.begin(false)
		l.lower(4)
		l.end(under, claimed(40, 40))
		require.Equal(t, marks{1: 4, 2: 4}, l.begin(false).marks)
		l.lower(99)
		require.Equal(t, marks{1: 4, 2: 4}, l.begin(false).marks)
	})
	t.Run("a mark rises beside builds that do not overtake, and only up to those that do", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		under := l.begin(false)
		l.lower(99)
		l.end(under, claimed(40, 40))
		require.Equal(t, marks{1: 40, 2: 40}, l.begin(false).marks)
		under = l.begin(false)
		l.lower(45)
		l.end(under, claimed(50, 60))
		require.Equal(t, marks{1: 45, 2: 45}, l.begin(false).marks, "it may be of any class")
		under = l.begin(false)
		for range 300 {
			l.lower(99)
		}
		l.end(under, claimed(70, 70))
		require.Equal(t, marks{1: 45, 2: 45}, l.begin(false).marks, "more than are remembered")
	})
	t.Run("a batch that failed puts back what it had locked", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		failing, other := l.begin(false), l.begin(false)
		l.end(l.begin(false), claimed(50))
		l.undo(failing)
		l.end(other, claimed(40))
		require.Equal(t, marks{1: 10, 2: 30}, l.begin(false).marks)
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
		l.endLook(look, below, marks{1: 3}, nil)
		l.end(under, claimed(99, 99))
		require.Equal(t, marks{1: 3, 2: 30}, l.begin(false).marks)
	})
	t.Run("mark what nobody has claimed from", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		look, below, _ := l.beginLook()
		l.endLook(look, below, marks{}, nil)
		require.Equal(t, marks{1: 30, 2: 30}, l.begin(false).marks)
	})
	t.Run("do not raise marks that were lowered meanwhile", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		look, below, _ := l.beginLook()
		l.lower(7)
		l.endLook(look, below, marks{}, nil)
		require.Equal(t, marks{1: 7, 2: 7}, l.begin(false).marks)
	})
	t.Run("rest while they are slow, and claims stay above the marks", func(t *testing.T) {
		t.Parallel()
		l, now := marksAt()
		look, below, _ := l.beginLook()
		*now = now.Add(time.Second)
		l.endLook(look, below, marks{1: 10, 2: 30}, nil)
		p := l.begin(true)
		require.Equal(t, marks{1: 10, 2: 30}, p.marks)
		require.True(t, p.whole(both), "nothing is looked for below")
		_, _, due := l.beginLook()
		require.False(t, due)
		*now = now.Add(lookPause * time.Second)
		look, below, due = l.beginLook()
		require.True(t, due)
		l.endLook(look, below, marks{}, nil)
		require.Zero(t, l.begin(true).marks)
	})
	t.Run("that fail are slow", func(t *testing.T) {
		t.Parallel()
		l, _ := marksAt()
		look, below, _ := l.beginLook()
		l.endLook(look, below, marks{}, errSlow)
		require.Equal(t, marks{1: 10, 2: 30}, l.begin(true).marks)
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

func TestSubmitsThatKnownWorkersTakeNeedNoCount(t *testing.T) {
	t.Parallel()
	of := func(id int32, require string) *addition {
		return &addition{class: store.Class{ID: id, Platform: store.IOS, Require: store.StoredRequire(require)}}
	}
	var k knownFleet
	require.True(t, k.takes([]*addition{of(1, ""), of(0, "")}), "those of a platform are never unmatched")
	require.False(t, k.takes([]*addition{of(7, "gpu")}), "nothing is known")
	k.fleet, k.at = store.NewFleet([]store.FleetGroup{{Labels: store.Labels{"gpu": "1"}, N: 1}}), time.Now().Add(time.Hour)
	require.True(t, k.takes([]*addition{of(1, ""), of(7, "gpu")}))
	require.False(t, k.takes([]*addition{of(7, "gpu"), of(8, "xcode")}))
	require.False(t, k.takes([]*addition{of(0, "gpu")}), "the first of its class is counted")
	k.at = time.Now().Add(-hintAge)
	require.False(t, k.takes([]*addition{of(7, "gpu")}), "too old")
}
