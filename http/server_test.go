package http_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/dashboard"
	"takt/http/edge"
	"takt/http/edge/edgetest"
	"takt/store"
)

const (
	apiKey   = "test-api-key-0123456789"
	adminKey = "test-admin-key-0123456789"
)

func newServer(tb testing.TB, deps takthttp.Deps, change ...func(*takthttp.Config)) (*takthttp.Server, *edgetest.Logs) {
	tb.Helper()
	return newServerWith(tb, deps, nil, change...)
}

// newServerWith is newServer with the data of the dashboard's pages.
func newServerWith(tb testing.TB, deps takthttp.Deps, pages dashboard.Store, change ...func(*takthttp.Config)) (*takthttp.Server, *edgetest.Logs) {
	tb.Helper()
	l := &edgetest.Logs{}
	if deps.Requests == nil {
		deps.Requests = inline{}
	}
	if deps.Publish == nil {
		deps.Publish = (&published{}).publish
	}
	if deps.Tokens == nil {
		deps.Tokens = tokensOf(tb)
	}
	if deps.Background == nil {
		deps.Background = func(func(context.Context)) {}
	}
	if deps.Ready == nil {
		deps.Ready = func() bool { return true }
	}
	if deps.VacuumHeldBack == nil {
		deps.VacuumHeldBack = func() time.Duration { return 90 * time.Second }
	}
	if deps.Metrics == nil {
		deps.Metrics = prometheus.NewRegistry()
	}
	if deps.Logger.GetLevel() != zerolog.Disabled {
		deps.Logger = zerolog.New(l)
	}
	cfg := takthttp.Config{Config: edge.Config{APIKey: apiKey, AdminKey: adminKey, WrongKeys: -1}}
	for _, f := range change {
		f(&cfg)
	}
	if deps.Attention == nil {
		deps.Attention = newAttention(deps, nil)
	}
	history := dashboard.NewHistory(deps.Heijunka, nil)
	deps.Builds, deps.Serving = history.Observe(func() (store.QueueCount, bool) { return store.QueueCount{}, false }, nil, deps.Builds), history.Run
	s, err := takthttp.New(deps, cfg)
	require.NoError(tb, err)
	s.Handle(dashboard.New(s, dashboard.Deps{
		Deps: deps, Store: pages, History: history,
	}, dashboard.Config{PublicURL: cfg.PublicURL}).Routes()...)
	return s, l
}

// serve runs s on a listener of its own and returns its address, and a function
// that ends it and waits.
func serve(tb testing.TB, s *takthttp.Server, ln net.Listener) (url string, stop func() error) {
	tb.Helper()
	ctx, cancel := context.WithCancelCause(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	stop = sync.OnceValue(func() error {
		cancel(nil)
		err := <-ended
		s.Wait()
		return err
	})
	tb.Cleanup(func() {
		gone, cancel := context.WithCancelCause(context.WithoutCancel(tb.Context()))
		cancel(nil)
		s.Drain(gone) // so that connections without a request are not waited for
		require.NoError(tb, stop())
	})
	return "http://" + ln.Addr().String(), stop
}

// served serves deps and returns the server's address.
func served(tb testing.TB, deps takthttp.Deps, change ...func(*takthttp.Config)) string {
	tb.Helper()
	s, _ := newServer(tb, deps, change...)
	url, _ := serve(tb, s, listen(tb))
	return url
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, ln.Close()) })
	return ln
}

func newClient(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{ExpectContinueTimeout: 10 * time.Second}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: checker(t).Transport(t, tr), Timeout: time.Minute}
}

func TestParkedPollsAreAnsweredWhenTheServerEnds(t *testing.T) {
	t.Parallel()
	q := parking{parked: make(chan struct{}, 2), ended: make(chan error, 2)}
	s, _ := newServer(t, takthttp.Deps{Queue: q})
	url, stop := serve(t, s, listen(t))
	c := newClient(t)
	token := tokensOf(t).Issue(store.WorkerToken{Worker: 7})
	byToken := begin(t, c, "GET", url+"/api/workers/poll?wait=60", key("X-Worker-Token", token), nil)
	byID := begin(t, c, "POST", url+"/api/workers/poll?wait=60&worker_id=w", key(), nil)
	<-q.parked
	<-q.parked
	require.NoError(t, stop())
	r := <-byToken
	require.Equal(t, 200, r.status)
	requireBody(t, `{"job":null,"access_token":"`+token+`","queue_size":0}`, r)
	r = <-byID
	require.Equal(t, 503, r.status, "it has no token to go on with")
	require.NotEmpty(t, r.header.Get("Retry-After"))
}

func TestParkedPollEndsWithItsClient(t *testing.T) {
	t.Parallel()
	q := parking{parked: make(chan struct{}, 1), ended: make(chan error, 1)}
	url := served(t, takthttp.Deps{Queue: q})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	c := newClient(t)
	gone := make(chan error, 1)
	go func() {
		_, err := try(ctx, c, "POST", url+"/api/workers/poll?wait=60&worker_id=w", key(), strings.NewReader("{}"))
		gone <- err
	}()
	<-q.parked
	cancel(nil)
	require.Error(t, <-gone)
	require.ErrorIs(t, <-q.ended, context.Canceled)
}

// finder is a store of builds of which only Find is used.
type finder struct {
	takthttp.Builds
	find func(ctx context.Context) (store.Build, error)
}

func (f finder) Find(ctx context.Context, _ string) (store.Build, error) { return f.find(ctx) }
