package edge_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/http/api"
	"takt/http/edge"
	"takt/http/edge/edgetest"
	"takt/http/tlstest"
	"takt/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	apiKey   = "test-api-key-0123456789"
	adminKey = "test-admin-key-0123456789"
	keyed    = "X-API-Key: " + apiKey
	waitFor  = time.Minute
	tick     = 5 * time.Millisecond
)

// fixture is a server of a few endpoints, one of each kind, without the product's stores.
type fixture struct {
	*testing.T
	*edge.Server
	options
	url  string
	logs *edgetest.Logs
	// stop ends Serve and waits for it, not for its requests.
	stop func() error
}

// options are what a test sets.
type options struct {
	deps edge.Deps
	cfg  edge.Config
	// do answers /admin, /page, /public, /build and /get; as the zero value it replies "done".
	do     edge.Handler
	file   file                                            // what GET /file sends
	run    func(ctx context.Context, s *edge.Stream) error // the stream at /stream
	memory *edgetest.Listener                              // nil: it listens on TCP
	trusts *tls.Config                                     // of clients; nil: there is no TLS
}

func onTCP(o *options) { o.memory = nil }

func onTLS(t *testing.T) func(o *options) {
	t.Helper()
	ca, now := tlstest.NewAuthority(t), time.Now() // which is another time in a bubble
	cert, key := ca.Issue(t, t.TempDir(), 1)
	pair, err := edge.OpenCertificate(cert, key, zerolog.Nop())
	require.NoError(t, err)
	return func(o *options) {
		o.deps.TLS = pair
		o.trusts = &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", Time: func() time.Time { return now }}
	}
}

// setup serves a fixture, in memory if nothing else is asked for.
func setup(t *testing.T, change ...func(o *options)) *fixture {
	t.Helper()
	f := &fixture{T: t, logs: &edgetest.Logs{}, options: options{memory: edgetest.Listen()}}
	f.do = func(_ context.Context, c echo.Context) (any, error) {
		_, err := edge.ReadBody(c)
		return api.Status{Status: "done"}, err
	}
	f.deps = edge.Deps{
		Requests: &requests{}, Report: func(store.AuditEntry) {}, Logger: zerolog.New(f.logs), Bodies: map[api.BodyLimit]int64{api.SourceBody: 100 << 20},
	}
	f.cfg = edge.Config{APIKey: apiKey, AdminKey: adminKey, WrongKeys: -1}
	for _, c := range change {
		c(&f.options)
	}
	f.Server = edge.New(f.deps, f.cfg.WithDefaults())
	f.Handle(f.routes()...)
	f.url, f.stop = f.serve(f.listen())
	return f
}

// routes are the endpoints: their access and class decide how they are served.
func (f *fixture) routes() []edge.Route {
	route := func(line string, access api.Access, class api.Class, handle edge.Handler) edge.Route {
		method, path, _ := strings.Cut(line, " /")
		e := api.Route{Method: method, Path: "/" + path, Access: access, Class: class}
		if class == api.Transfer {
			e.Body = api.SourceBody
		}
		r := f.Of(e)
		r.Handle = handle
		return r
	}
	do := func(ctx context.Context, c echo.Context) (any, error) { return f.do(ctx, c) }
	live := route("GET /livez", api.Public, api.Ops, func(context.Context, echo.Context) (any, error) { return api.Status{Status: "ok"}, nil })
	ready := route("GET /readyz", api.Public, api.Ops, func(ctx context.Context, _ echo.Context) (any, error) {
		if edge.Stopping(ctx).Err() != nil {
			return nil, edge.ErrDraining()
		}
		return api.Status{Status: "ready"}, nil
	})
	live.Serve, ready.Serve = f.Probe, f.Probe
	stream := route("GET /stream", api.APIKey, api.Query, nil)
	stream.Serve = func(c echo.Context, _ *edge.Route) error { return f.Stream(c, f.run) }
	return []edge.Route{
		live, ready, stream,
		route("GET /admin", api.AdminKey, api.Ops, do), route("GET /page", api.Public, api.Ops, do), route("GET /public", api.Public, api.Query, do),
		route("POST /json", api.APIKey, api.Query, do), route("GET POST /build", api.BuildKey, api.Query, do), route("POST /monitor", api.MonitorKey, api.Fleet, do),
		route("GET /get", api.APIKey, api.Query, do), route("POST /file", api.APIKey, api.Transfer, f.upload), route("GET /file", api.APIKey, api.Transfer, f.download),
	}
}

func (f *fixture) upload(_ context.Context, c echo.Context) (any, error) {
	err := edge.NewForms(f.Config).Read(c, func(_ *edge.Form, p *multipart.Part) error {
		_, err := io.Copy(io.Discard, edge.Content(p, nil))
		return err
	})
	return api.Status{Status: "done"}, err
}

func (f *fixture) download(_ context.Context, c echo.Context) (any, error) {
	content := f.file // each has its own position
	return nil, f.SendDownload(c, edge.Download{Content: &content, ContentType: "application/zip", Name: "f.zip"})
}

func (f *fixture) listen() net.Listener {
	f.Helper()
	if f.memory != nil {
		return f.memory
	}
	ln, err := (&net.ListenConfig{}).Listen(f.Context(), "tcp", "127.0.0.1:0")
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, ln.Close()) })
	return ln
}

// serve serves on ln until the test ends, or stop is called.
func (f *fixture) serve(ln net.Listener) (url string, stop func() error) {
	f.Helper()
	ctx, cancel := context.WithCancelCause(f.Context())
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = f.Serve(ctx, ln)
	}()
	stop = func() error {
		cancel(nil)
		<-ended
		return err
	}
	f.Cleanup(func() {
		gone, cancel := context.WithCancelCause(context.WithoutCancel(f.Context()))
		cancel(nil)
		f.Drain(gone) // so that connections without a request are not waited for
		require.NoError(f, stop())
		f.Wait()
	})
	at := "takt"
	if f.memory == nil {
		at = ln.Addr().String()
	}
	if f.trusts != nil {
		return "https://" + at, stop
	}
	return "http://" + at, stop
}

// dial opens a connection from an address; "" is none.
func (f *fixture) dial(from string) *edgetest.Conn {
	f.Helper()
	if f.memory == nil {
		return edgetest.DialTCP(f.T, f.url[strings.LastIndexByte(f.url, '/')+1:])
	}
	return f.memory.Dial(f.T, from)
}

// ask sends a request over a connection of its own and returns the status.
func (f *fixture) ask(from, text string) int {
	f.Helper()
	c := f.dial(from)
	defer c.Close()
	return c.Ask(text).Status
}

// client returns a client, which speaks HTTP/2 if the server has TLS.
func (f *fixture) client() *http.Client {
	tr := &http.Transport{TLSClientConfig: f.trusts.Clone(), ForceAttemptHTTP2: true}
	if f.memory != nil {
		tr.DialContext = f.memory.DialContext
	}
	f.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// send sends a request with all keys. What went wrong is a reply without status.
func (f *fixture) send(c *http.Client, method, path string, body io.Reader) (r edgetest.Reply) {
	req, err := http.NewRequestWithContext(f.Context(), method, f.url+path, body)
	if err != nil {
		return edgetest.Reply{Body: err.Error()}
	}
	req.Header = http.Header{"X-Api-Key": {apiKey}, "X-Admin-Key": {adminKey}, "Content-Type": {"multipart/form-data; boundary=b"}}
	resp, err := c.Do(req)
	if err != nil {
		return edgetest.Reply{Body: err.Error()}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return edgetest.Reply{Body: err.Error()}
	}
	return edgetest.Reply{Status: resp.StatusCode, Header: resp.Header, Body: string(data), Closes: resp.Close}
}

// begin sends a request with all keys and leaves its reply unread.
func (f *fixture) begin(c *http.Client, method, path string) *http.Response {
	f.Helper()
	req, err := http.NewRequestWithContext(f.Context(), method, f.url+path, nil)
	require.NoError(f, err)
	req.Header = http.Header{"X-Api-Key": {apiKey}, "X-Admin-Key": {adminKey}}
	resp, err := c.Do(req)
	require.NoError(f, err)
	f.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(f, 200, resp.StatusCode)
	return resp
}

// metric returns the sum of a metric.
func (f *fixture) metric(name string) (n float64) {
	f.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(f.Metrics())
	families, err := r.Gather()
	require.NoError(f, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name {
				n += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// sized is a handler that replies with so many bytes.
func sized(size int) edge.Handler {
	return func(context.Context, echo.Context) (any, error) {
		return api.Status{Status: strings.Repeat("t", size)}, nil
	}
}

// requests counts those that run, and lets a test hold or end them.
type requests struct {
	running atomic.Int64
	hold    chan struct{}    // nil, or what each waits for
	begun   chan func(error) // gets what ends a request; nil: nothing
	most    int64            // more are refused; 0: none are
	crashes atomic.Int64
}

func (r *requests) Do(ctx context.Context, w store.Work, fn func(context.Context) error) (err error) {
	defer r.running.Add(-1)
	if n := r.running.Add(1); r.most > 0 && n > r.most {
		return store.NewError(store.Overloaded, "all places are taken")
	}
	if r.hold != nil {
		select {
		case <-r.hold:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.begun != nil {
		r.begun <- func(why error) { w.OnStop(); cancel(why) }
	}
	defer func() {
		if v := recover(); v != nil {
			r.crashes.Add(1)
			err = errors.New("request panicked")
		}
	}()
	return fn(ctx)
}

// file is a file of size bytes, of which read returns each piece.
type file struct {
	size, at int64
	read     func(at int64) error // nil: there are no errors
}

func (c *file) Read(p []byte) (n int, err error) {
	if c.read != nil {
		if err := c.read(c.at); err != nil {
			return 0, err
		}
	}
	if c.at >= c.size {
		return 0, io.EOF
	}
	n = int(min(int64(len(p)), c.size-c.at))
	c.at += int64(n)
	return n, nil
}

func (c *file) Seek(offset int64, whence int) (int64, error) {
	c.at = offset
	if whence == io.SeekEnd {
		c.at += c.size
	}
	return c.at, nil
}
