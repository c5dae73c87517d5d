package runner

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/http/api"
	"takt/store"
	"takt/store/backoff"
)

// requests records polls and registrations.
type requests struct {
	mu      sync.Mutex
	polls   []int // how many registrations were sent before each poll
	numbers []int64
}

// record returns how many registrations there were.
func (q *requests) record(r *http.Request) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch r.URL.Path {
	case "/api/workers/poll":
		q.polls = append(q.polls, len(q.numbers))
	case "/api/workers/register":
		var in api.Register
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		_ = json.Unmarshal(body, &in) // 0 does not grow
		q.numbers = append(q.numbers, in.Registration)
	}
	return len(q.numbers)
}

// take returns what was recorded, and forgets the polls.
func (q *requests) take() (polls []int, numbers []int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	polls, q.polls = q.polls, nil
	return polls, slices.Clone(q.numbers)
}

// A worker whose registrations were not answered does not poll, although its token is good: one
// of them could be executed later and would take the build. Nor would the next process poll.
func TestAWorkerDoesNotPollUntilARegistrationIsAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild)
	var q requests
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if q.record(r) > 1 || !strings.HasSuffix(r.URL.Path, "/register") {
			return false
		}
		controllertest.Problem(w, http.StatusConflict, store.LateRegistration, "A later registration of this process was executed")
		return true // a proxy has delivered it twice
	})
	b.start(t)
	b.completes(t)
	b.Await(t, "it polls", func() bool { return b.Polls() > 0 })
	session := filepath.Join(b.worker.cfg.StateDir, "session")
	require.FileExists(t, session)
	_, numbers := q.take()
	require.Len(t, numbers, 2)
	var seen each
	var kept atomic.Bool
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		q.record(r)
		n := seen.next(r)
		switch {
		case strings.HasSuffix(r.URL.Path, "/poll") && n == 1:
			controllertest.Problem(w, http.StatusUnauthorized, store.InvalidToken, "Invalid token")
			return true
		case strings.HasSuffix(r.URL.Path, "/register") && n <= 4:
			_, err := os.Stat(session)
			kept.CompareAndSwap(false, err == nil)
			if n != 2 {
				panic(http.ErrAbortHandler)
			}
			controllertest.Problem(w, http.StatusForbidden, store.InvalidAPIKey, "Invalid API key") // not repeated at once
			return true
		}
		return false
	})
	id := b.Submit("ios", source(t), nil) // the parked poll gets it
	b.AwaitState(t, id, store.Completed)
	id = b.Submit("ios", source(t), nil)
	b.AwaitState(t, id, store.Completed)
	b.Intercept(nil)
	polls, numbers := q.take()
	require.False(t, kept.Load(), "the token is no longer saved")
	require.Len(t, numbers, 7)
	for i, n := range polls {
		require.True(t, i == 0 || n == 7, "polls after so many registrations: %v", polls)
	}
	for i := 1; i < len(numbers); i++ {
		require.Greater(t, numbers[i], numbers[i-1])
	}
}

// The next process in a state directory may have the same instance, so its numbers go on, even
// if the clock was set back.
func TestNumbersOfRegistrationsGrowOverProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	last := int64(0)
	next := func(now time.Time) {
		t.Helper()
		s := must(openState(dir, ""))(t)
		defer s.close()
		for range 2 {
			n := must(s.nextRegistration(now))(t)
			require.Greater(t, n, last)
			last = n
		}
	}
	now := time.Now()
	next(now)
	next(now)
	next(now.Add(-time.Hour))
	require.NoError(t, os.Remove(filepath.Join(dir, "registration")))
	next(now.Add(time.Second))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "registration"), []byte("99999999999999999999\n"), 0o600))
	last = 0
	next(now)
	require.Less(t, last, now.Add(time.Minute).UnixMilli(), "what is no number is none")
}

// A controller of an earlier release records no features. Behind a load balancer, the next
// registration may reach a newer one.
func TestAWorkerRegistersAgainUntilAControllerKnowsItsFeatures(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild, func(c *Config) { c.Again, c.PollWait = backoff.Backoff{Max: time.Millisecond}, time.Second })
	var seen each
	b.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/register") && seen.next(r) <= 2 {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte(`"features"`), []byte(`"unknown"`))))
		}
		return false
	})
	b.start(t)
	known := func() bool { return len(b.Workers()) == 1 && len(b.Workers()[0].Capabilities.Features) > 0 }
	b.Await(t, "a controller knows its features", known)
	for range 3 {
		b.completes(t) // each needs polls
	}
	require.Equal(t, 3, b.Workers()[0].Registrations, "and it need not register any more")
	b.drain()
	require.Zero(t, b.worker.older)

	as := b.worker.registration()
	b.worker.older = 2
	require.NotEqual(t, as, b.worker.registration(), "the next process does not resume such a session")
	require.Equal(t, string(as)+"\nolder", string(b.worker.registration()))
}
