package http

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/http/edge"
	"takt/store"
	"takt/store/storetest/faketime"
)

// quiet is a queue without builds.
type quiet struct{ agreeing }

func (quiet) Arrive(_ context.Context, r store.PollRequest, _ time.Duration) (store.AwaitReply, error) {
	return func(context.Context, <-chan struct{}) (store.PollReply, error) {
		return store.PollReply{Token: r.Presented}, nil
	}, nil
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
		s, err := New(Deps{Queue: quiet{}, Tokens: tokens, Requests: agreeing{}, Logger: zerolog.Nop()}, Config{Config: edge.Config{APIKey: testKey}, PollRate: 10})
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
		for i := range 11 { // an id is not a token, and is limited as well
			require.Equal(t, i < 10, pollAs(t, s, "", "?worker_id=w").Code == 200)
		}
		require.Equal(t, 200, pollAs(t, s, "", "?worker_id=v").Code)
		faketime.Pass(100 * time.Millisecond)
		require.Equal(t, 200, pollAs(t, s, shows(7, 99), "").Code)
		require.Equal(t, 429, pollAs(t, s, shows(7, 99), "").Code)
	})
}

func TestPollsWithoutTheKeyAreNotCounted(t *testing.T) {
	t.Parallel()
	tokens := knownTokens(t)
	s, err := New(Deps{Background: func(func(context.Context)) {}, Queue: quiet{}, Tokens: tokens, Requests: agreeing{}, Logger: zerolog.Nop()}, Config{Config: edge.Config{APIKey: testKey, WrongKeys: -1}, PollRate: 1})
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

func TestRegistrationsOfOneAddressAreLimited(t *testing.T) {
	t.Parallel()
	s, err := New(Deps{Requests: agreeing{}, Logger: zerolog.Nop()},
		Config{Config: edge.Config{APIKey: testKey, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, RegisterRate: 2})
	require.NoError(t, err)
	register := func(peer, forwarded string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/workers/register", strings.NewReader("{}"))
		r.RemoteAddr = peer
		r.Header.Set("X-API-Key", testKey)
		r.Header.Set("X-Forwarded-For", forwarded)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	for _, from := range [][2]string{{"192.0.2.1:1", "198.51.100.1"}, {"10.0.0.1:1", "198.51.100.2"}, {"10.0.0.1:2", "198.51.100.3"}} {
		require.Equal(t, 422, register(from[0], from[1]).Code, "admitted, and then found wanting")
		require.Equal(t, 422, register(from[0], from[1]).Code)
		w := register(from[0], from[1])
		require.Equal(t, 429, w.Code)
		require.Equal(t, `"register";q=2;w=1`, w.Header().Get("RateLimit-Policy"))
		require.NotEmpty(t, w.Header().Get("Retry-After"))
	}
	require.Equal(t, 429, register("192.0.2.1:9", "203.0.113.1").Code, "an unknown client can't change its address")
}
