package http

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/http/edge"
	"takt/store"
)

func bareServer(tb testing.TB) *Server {
	tb.Helper()
	s, err := New(Deps{Logger: zerolog.Nop()}, Config{Config: edge.Config{APIKey: "test-api-key-0123456789"}})
	require.NoError(tb, err)
	return s
}

func FuzzLastEventID(f *testing.F) {
	for _, id := range []string{"", "0", "7", "-1", "+1", "1e3", "0x7", "9223372036854775808", " 7", "a-7", "\u0663"} {
		f.Add(id, "0")
	}
	s := bareServer(f)
	for range 20 {
		s.Publish(Event{Topic: "worker:updated"})
	}
	f.Add(s.ring.ID(3), "1")
	f.Add(s.ring.ID(21), "1")
	f.Fuzz(func(t *testing.T, id, after string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header["Last-Event-Id"] = []string{id}
		q := r.URL.Query()
		q.Set("after", after)
		r.URL.RawQuery = q.Encode()
		n, err := tailStart(echo.New().NewContext(r, httptest.NewRecorder()))
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
		}
		require.GreaterOrEqual(t, n, int64(0))
		seq, ok := s.ring.Seq(id)
		if !ok {
			return
		}
		events, _, known := s.ring.After(seq, nil, 100)
		require.Equal(t, known, seq <= 20)
		if known {
			require.Len(t, events, int(20-seq))
		}
	})
}
