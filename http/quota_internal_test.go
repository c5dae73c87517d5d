package http

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/store"
)

// size is how many keys are remembered.
func (q *quota) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.young) + len(q.old)
}

// allowed counts how many of n are admitted at once.
func allowed(q *quota, key string, n int, now time.Time) (admitted int) {
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
	q := newQuota("poll", 100, now)
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
	q := newQuota("poll", 50, begin)
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
	q := newQuota("poll", 10, now)
	require.Equal(t, 10, allowed(q, "w", 10_000, now))
	require.Equal(t, 1, allowed(q, "w", 10, now.Add(100*time.Millisecond)), "hammering doesn't move its turn")
}

func TestQuotaForgetsKeysThatRest(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := newQuota("poll", 100, now)
	for i := range 100_000 {
		q.take(strconv.Itoa(i), now.Add(time.Duration(i)*time.Millisecond))
	}
	require.LessOrEqual(t, q.size(), 2*1000, "those of two seconds")
}

func TestKeysThatDoNotRestAreBoundedAndBlockNobody(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := newQuota("poll", 100, now)
	require.Equal(t, 100, allowed(q, "busy", 100, now))
	for i := range 2 * quotaKeys {
		if _, wait := q.take("garbage"+strconv.Itoa(i), now); wait != 0 {
			t.Fatal("a new key is refused for others' sake")
		}
	}
	require.LessOrEqual(t, q.size(), quotaKeys)
	require.Zero(t, allowed(q, "busy", 10, now), "who has used most is forgotten last")
}

func TestQuotaIsSafeToShare(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q := newQuota("poll", 1000, now)
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

// quiet is a queue without builds.
type quiet struct{ agreeing }

func (quiet) Arrive(_ context.Context, r store.PollRequest, _ time.Duration) (store.PollReply, func(context.Context) (store.PollReply, error), error) {
	return store.PollReply{Token: r.Presented}, nil, nil
}

func pollAs(t *testing.T, s *Server, token, query string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/workers/poll"+query, nil)
	r.Header.Set("X-API-Key", testKey)
	if token != "" {
		r.Header.Set("X-Worker-Token", token)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func TestPollsOfOneWorkerAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens := knownTokens(t)
		shows := func(worker uint32, counter int) string {
			return tokens.Issue(store.WorkerToken{Worker: worker, Counter: uint64(counter)})
		}
		s, err := New(Deps{Queue: quiet{}, Tokens: tokens, Requests: agreeing{}, Logger: zerolog.Nop()}, Config{APIKey: testKey, PollRate: 10})
		require.NoError(t, err)
		for i := range 10 { // its tokens change, its number does not
			w := pollAs(t, s, shows(7, i), "")
			require.Equal(t, 200, w.Code)
			require.Equal(t, i >= 4, w.Header().Get("RateLimit") != "", "only who has used half need know")
		}
		w := pollAs(t, s, shows(7, 99), "")
		require.Equal(t, 429, w.Code)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Equal(t, `"poll";q=10;w=1`, w.Header().Get("RateLimit-Policy"))
		require.Equal(t, `"poll";r=0;t=1`, w.Header().Get("RateLimit"))
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		require.Contains(t, w.Body.String(), `"code":"rate_limited"`)
		require.Equal(t, 200, pollAs(t, s, shows(8, 99), "").Code, "others are not concerned")
		require.Equal(t, 200, pollAs(t, s, "", "?worker_id=w").Code, "an id is not a token")
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // fake time
		require.Equal(t, 200, pollAs(t, s, shows(7, 99), "").Code)
		require.Equal(t, 429, pollAs(t, s, shows(7, 99), "").Code)
	})
}

func TestWorkersWithoutTokensAreLimitedById(t *testing.T) {
	t.Parallel()
	tokens := knownTokens(t)
	s, err := New(Deps{Queue: quiet{}, Tokens: tokens, Requests: agreeing{}, Logger: zerolog.Nop()}, Config{APIKey: testKey, PollRate: 1})
	require.NoError(t, err)
	require.Equal(t, 200, pollAs(t, s, "", "?worker_id=a").Code)
	require.Equal(t, 429, pollAs(t, s, "", "?worker_id=a").Code)
	require.Equal(t, 200, pollAs(t, s, "", "?worker_id=b").Code)
}

func TestPollsWithoutTheKeyAreNotCounted(t *testing.T) {
	t.Parallel()
	tokens := knownTokens(t)
	s, err := New(Deps{Background: func(func(context.Context)) {}, Queue: quiet{}, Tokens: tokens, Requests: agreeing{}, Logger: zerolog.Nop()}, Config{APIKey: testKey, PollRate: 1, WrongKeys: -1})
	require.NoError(t, err)
	for range 100 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/workers/poll", nil)
		r.Header.Set("X-API-Key", "wrong")
		r.Header.Set("X-Worker-Token", tokens.Issue(store.WorkerToken{Worker: 7}))
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		require.Equal(t, 403, w.Code)
	}
	require.Equal(t, 200, pollAs(t, s, tokens.Issue(store.WorkerToken{Worker: 7}), "").Code)
}

func TestNegativeRateMeansNoLimit(t *testing.T) {
	t.Parallel()
	tokens := knownTokens(t)
	s, err := New(Deps{Queue: quiet{}, Tokens: tokens, Requests: agreeing{}, Logger: zerolog.Nop()}, Config{APIKey: testKey, PollRate: -1})
	require.NoError(t, err)
	for range 1000 {
		require.Equal(t, 200, pollAs(t, s, tokens.Issue(store.WorkerToken{Worker: 7}), "").Code)
	}
}

func BenchmarkQuota(b *testing.B) {
	q := newQuota("poll", 100, time.Now())
	keys := make([]string, 20_000)
	for i := range keys {
		keys[i] = "\x00" + strconv.Itoa(10_000_000+i)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		h := http.Header{}
		for i := 0; pb.Next(); i++ {
			_ = q.admit(h, keys[i%len(keys)])
		}
	})
}
