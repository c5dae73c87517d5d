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
	"takt/http/api"
	"takt/http/dashboard"
	"takt/http/edge"
	"takt/store"
)

const (
	apiKey   = "test-api-key-0123456789"
	adminKey = "test-admin-key-0123456789"
)

func newServer(tb testing.TB, deps takthttp.Deps, change ...func(*takthttp.Config)) (*takthttp.Server, *logs) {
	tb.Helper()
	return newServerWith(tb, deps, nil, change...)
}

// newServerWith is newServer with the data of the dashboard's pages.
func newServerWith(tb testing.TB, deps takthttp.Deps, pages dashboard.Store, change ...func(*takthttp.Config)) (*takthttp.Server, *logs) {
	tb.Helper()
	l := &logs{}
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
	deps.Logger = zerolog.New(l)
	cfg := takthttp.Config{Config: edge.Config{APIKey: apiKey, AdminKey: adminKey, WrongKeys: -1}}
	for _, f := range change {
		f(&cfg)
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

func TestServeBorrowsItsListener(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	ln := listen(t)
	for range 3 {
		url, stop := serve(t, s, ln)
		c := newClient(t)
		require.Equal(t, 200, send(t, c, "GET", url+"/livez", nil, nil).status)
		c.CloseIdleConnections() // they would be waited for
		require.NoError(t, stop())
	}
}

func TestConnectionsBetweenTwoServesWait(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	ln := listen(t)
	url, stop := serve(t, s, ln)
	require.NoError(t, stop())
	answered := begin(t, newClient(t), "GET", url+"/livez", nil, nil)
	serve(t, s, ln)
	require.Equal(t, 200, (<-answered).status)
}

func TestServeFailsWithItsListener(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	require.ErrorIs(t, s.Serve(t.Context(), ln), net.ErrClosed)
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

func TestRunningRequestsAreCutOffAtTheDeadline(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}), make(chan error, 1)
	deps := takthttp.Deps{Builds: finder{find: func(ctx context.Context) (store.Build, error) {
		close(started)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return store.Build{}, context.Cause(ctx)
	}}}
	s, _ := newServer(t, deps, func(c *takthttp.Config) { c.ShutdownTimeout = 50 * time.Millisecond })
	url, stop := serve(t, s, listen(t))
	cut := begin(t, newClient(t), "GET", url+"/api/builds/b/status", key(), nil)
	<-started
	require.NoError(t, stop())
	require.Error(t, <-ended)
	require.Contains(t, []int{0, 503}, (<-cut).status, "cut off, or just told why")
}

// finder is a store of builds of which only Find is used.
type finder struct {
	takthttp.Builds
	find func(ctx context.Context) (store.Build, error)
}

func (f finder) Find(ctx context.Context, _ string) (store.Build, error) { return f.find(ctx) }

func TestPanicCostsItsRequestOnly(t *testing.T) {
	t.Parallel()
	deps := takthttp.Deps{
		Builds: finder{find: func(context.Context) (store.Build, error) { panic("secret detail") }},
		Tree:   func(bool) api.TreeNode { panic("other detail") },
	}
	s, l := newServer(t, deps)
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	for _, path := range []string{"/api/builds/b/status", "/admin/tree"} { // in an actor and without one
		r := send(t, c, "GET", url+path, key("X-Admin-Key", adminKey, "X-Request-Id", "the-one"), nil)
		require.Equal(t, 500, r.status)
		require.Contains(t, r.body, `"error":"Internal server error"`)
		require.NotContains(t, r.body, "detail\"}")
		require.NotContains(t, r.body, "secret")
	}
	require.Equal(t, 200, send(t, c, "GET", url+"/livez", nil, nil).status)
	require.Equal(t, 2, strings.Count(l.String(), "request failed"), "each is logged once")
	require.Contains(t, l.String(), "other detail")
	require.Contains(t, l.String(), `"request_id":"the-one"`)
}

func TestBypassRoutesHaveALimit(t *testing.T) {
	t.Parallel()
	in, out := make(chan struct{}), make(chan struct{})
	deps := takthttp.Deps{Tree: func(bool) api.TreeNode {
		in <- struct{}{}
		<-out
		return api.TreeNode{ID: "takt", Path: "takt", Type: "supervisor", Status: "running"}
	}}
	url := served(t, deps, func(c *takthttp.Config) { c.MaxBypass = 1 })
	c := newClient(t)
	admin := map[string]string{"X-Admin-Key": adminKey}
	first := begin(t, c, "GET", url+"/admin/tree", admin, nil)
	<-in
	r := send(t, c, "GET", url+"/admin/tree", admin, nil)
	require.Equal(t, 503, r.status)
	require.Equal(t, "1", r.header.Get("Retry-After"))
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/openapi.yaml"} {
		require.Equal(t, 200, send(t, c, "GET", url+path, nil, nil).status, "%s has nothing to do with it", path)
	}
	close(out)
	require.Equal(t, 200, (<-first).status)
}
