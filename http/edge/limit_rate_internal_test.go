package edge

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// size is how many keys are remembered.
func (q *Quota) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.by.young) + len(q.by.old)
}

// allowed counts how many of n are admitted at once.
func allowed(q *Quota, key string, n int, now time.Time) (admitted int) {
	for range n {
		if _, wait := q.take(key, now); wait == 0 {
			admitted++
		}
	}
	return admitted
}

func TestQuotaAdmitsItsRateAndNoMore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := NewQuota("poll", 100)
	require.Equal(t, 100, allowed(q, "w", 150, now))
	left, wait := q.take("w", now)
	require.Zero(t, left)
	require.Equal(t, 10*time.Millisecond, wait)

	require.Equal(t, 100, allowed(q, "other", 150, now), "each key has its own")
	require.Zero(t, allowed(q, "w", 1, now.Add(9*time.Millisecond)))
	require.Equal(t, 1, allowed(q, "w", 5, now.Add(10*time.Millisecond)))
	require.Equal(t, 100, allowed(q, "w", 150, now.Add(time.Hour)), "nothing is saved up")
}

func TestQuotaNeverAdmitsMoreThanTwiceItsRateInASecond(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	q := NewQuota("poll", 50)
	var admitted []time.Duration
	for at := time.Duration(0); at < 3*time.Second; at += time.Millisecond {
		if _, wait := q.take("w", begin.Add(at)); wait == 0 {
			admitted = append(admitted, at)
		}
	}
	require.InDelta(t, 50+3*50, len(admitted), 1, "the burst, then the rate")
}

func TestWhoIsRefusedPaysNothing(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := NewQuota("poll", 10)
	require.Equal(t, 10, allowed(q, "w", 10_000, now))
	require.Equal(t, 1, allowed(q, "w", 10, now.Add(100*time.Millisecond)), "hammering doesn't move its turn")
}

func TestQuotaForgetsKeysThatRest(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := NewQuota("poll", 100)
	for i := range 100_000 {
		q.take(strconv.Itoa(i), now.Add(time.Duration(i)*time.Millisecond))
	}
	require.LessOrEqual(t, q.size(), 2*1000, "those of two seconds")
}

func TestKeysThatDoNotRestAreBoundedAndBlockNobody(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := NewQuota("poll", 100)
	require.Equal(t, 100, allowed(q, "busy", 100, now))
	for i := range 2 * maxKeys {
		if _, wait := q.take("garbage"+strconv.Itoa(i), now); wait != 0 {
			t.Fatal("a new key is refused for others' sake")
		}
	}
	require.LessOrEqual(t, q.size(), maxKeys)
	require.Zero(t, allowed(q, "busy", 10, now), "who has used most is forgotten last")
}

func TestQuotaIsSafeToShare(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := NewQuota("poll", 1000)
	var mu sync.Mutex
	var wg sync.WaitGroup
	total := 0
	for range 8 {
		wg.Go(func() {
			n := allowed(q, "w", 500, now)
			mu.Lock()
			defer mu.Unlock()
			total += n
		})
	}
	wg.Wait()
	require.Equal(t, 1000, total)
}

func BenchmarkQuota(b *testing.B) {
	q := NewQuota("poll", 100)
	keys := make([]string, 20_000)
	for i := range keys {
		keys[i] = "\x00" + strconv.Itoa(10_000_000+i)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		h := http.Header{}
		for i := 0; pb.Next(); i++ {
			_ = q.Admit(h, keys[i%len(keys)])
		}
	})
}
