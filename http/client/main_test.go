package client_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/http/client"
	"takt/store/backoff"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const apiKey = "an-api-key-of-some-length"

// recorder keeps the requests that a test server saw.
type recorder struct {
	mu   sync.Mutex
	seen []*http.Request
}

func (r *recorder) add(req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, req)
}

func (r *recorder) last(t *testing.T) *http.Request {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.NotEmpty(t, r.seen)
	return r.seen[len(r.seen)-1]
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

// setup starts a server with h and returns a client of it. edit may change the
// client's configuration.
func setup(t *testing.T, h http.HandlerFunc, edit ...func(*client.Config)) (*client.Client, *recorder) {
	t.Helper()
	rec := &recorder{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rec.add(r); h(w, r) }))
	cfg := client.Config{
		BaseURL: server.URL, APIKey: apiKey, AdminKey: "an-admin-key",
		HTTPClient: &http.Client{Transport: client.NewTransport()},
	}
	for _, f := range edit {
		f(&cfg)
	}
	c := must(client.New(cfg))(t)
	t.Cleanup(func() { c.CloseIdle(); server.Close() })
	return c, rec
}

// quick is a retry that does not slow tests down.
func quick() client.Retry {
	return client.Retry{Backoff: backoff.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}, Attempts: 5}
}

func reply(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
