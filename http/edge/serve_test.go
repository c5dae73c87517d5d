package edge_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/http/edge"
	"takt/http/edge/edgetest"
	"takt/http/tlstest"
	"takt/store/storetest/faketime"
)

// get and fetch are requests that run as processes, one for a reply and one for a file.
var (
	get   = edgetest.Request("GET /get", keyed)
	fetch = edgetest.Request("GET /file", keyed)
)

// held begins a request that ends when release is called.
func held(o *options) (release func()) {
	hold := make(chan struct{})
	o.do = func(context.Context, echo.Context) (any, error) { <-hold; return "done", nil }
	return func() { close(hold) }
}

func TestServeLeavesItsRequestsAndItsListenerToTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var release func()
		f := setup(t, func(o *options) { o.cfg.MaxConnections, release = 2, held(o) })
		running := f.dial("")
		running.Send(get)
		synctest.Wait()
		require.NoError(t, f.stop(), "it does not wait for the request")
		f.serve(f.memory)
		next := f.dial("")
		require.Equal(t, 200, next.Ask(livez).Status, "the request before still runs")
		require.Equal(t, 200, f.ask("", livez))
		next.Cut() // connections of the server before are counted
		release()
		require.Equal(t, 200, running.Reply().Status)
		require.Equal(t, 200, f.ask("", livez))
	})
}

func TestServeTakesTurns(t *testing.T) {
	t.Parallel()
	f := setup(t, onTCP)
	ln := f.listen()
	first, end := context.WithCancelCause(t.Context())
	ended := make(chan error, 3)
	require.NoError(t, f.stop())
	waits := make(chan int)
	go func() { waits <- edgetest.DialTCP(t, ln.Addr().String()).Ask(livez).Status }() // connections that come between two of them wait
	go func() { ended <- f.Serve(first, ln) }()
	require.Equal(t, 200, <-waits)
	f.url, _ = f.serve(ln)
	never, give := context.WithCancelCause(t.Context())
	go func() { ended <- f.Serve(never, ln) }()
	give(errors.New("nobody serves"))
	require.NoError(t, <-ended, "it need not wait for its turn")
	require.Equal(t, 200, f.ask("", livez))
	end(nil)
	require.NoError(t, <-ended)
	for range 3 {
		require.Equal(t, 200, f.ask("", livez), "the next one accepts")
	}
}

func TestServeFailsWithItsListener(t *testing.T) {
	t.Parallel()
	f := setup(t)
	require.NoError(t, f.stop())
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	require.ErrorIs(t, f.Serve(t.Context(), ln), net.ErrClosed)
}

// As a browser does that has opened a connection in advance.
func TestServeGivesOpenConnectionsALastReplyWhenItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		fresh, used, silent := f.dial(""), f.dial(""), f.dial("")
		require.False(t, used.Ask(livez).Closes)
		faketime.Pass(9 * time.Second)
		go func() { _ = f.stop() }()
		synctest.Wait()
		for _, c := range []*edgetest.Conn{fresh, used} {
			got := c.Ask(livez)
			require.Equal(t, 200, got.Status)
			require.True(t, got.Closes)
		}
		require.Less(t, silent.Cut(), 3*time.Second)
	})
}

func TestDrainAnswersProbesAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		f := setup(t, func(o *options) {
			o.do = func(ctx context.Context, c echo.Context) (any, error) {
				wait := (<-chan struct{})(hold)
				if c.Path() == "/build" { // as a parked poll does
					wait = edge.Stopping(ctx).Done()
				}
				<-wait
				return "done", nil
			}
		})
		running, waits, kept := f.dial(""), f.dial(""), f.dial("")
		running.Send(get)
		waits.Send(edgetest.Request("GET /build", keyed))
		require.False(t, kept.Ask(livez).Closes)
		synctest.Wait()
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			f.Drain(context.WithoutCancel(t.Context()))
		}()
		require.Equal(t, 200, waits.Reply().Status, "what waits ends at once")
		requireDraining := func() {
			require.Equal(t, 200, f.ask("", livez))
			for _, line := range []string{"GET /readyz", "GET /get", "GET /page", "GET /public", "GET /admin", "POST /file", "GET /stream"} {
				got := f.dial("").Ask(edgetest.Request(line, keyed, "X-Admin-Key: "+adminKey))
				require.Equal(t, 503, got.Status, line)
				require.True(t, got.Closes, line)
				require.NotEmpty(t, got.Header.Get("Retry-After"), line)
				require.Contains(t, got.Body, "The controller is shutting down")
			}
		}
		requireDraining()
		got := kept.Ask(get)
		require.Equal(t, 503, got.Status, "on an old connection too")
		require.True(t, got.Closes)
		require.Equal(t, 1, f.Running())
		close(hold)
		require.Equal(t, 200, running.Reply().Status)
		<-drained
		requireDraining()
		require.NoError(t, f.stop())
		f.serve(f.memory)
		requireDraining()
	})
}

func TestDrainAndServeWaitNoLongerThanTheirLimit(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(f *fixture){"drain": func(f *fixture) { f.Drain(f.Context()) }, "serve": func(*fixture) {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				f := setup(t, func(o *options) {
					o.file.size = 32 << 20
					o.do = func(ctx context.Context, _ echo.Context) (any, error) {
						<-ctx.Done()
						ended <- context.Cause(ctx)
						return nil, context.Cause(ctx)
					}
				})
				download, request := f.dial(""), f.dial("")
				download.Send(fetch)
				request.Send(get)
				resp, err := http.ReadResponse(download.In, nil) //nolint:bodyclose // its connection is closed
				require.NoError(t, err)
				synctest.Wait() // the request has arrived, too
				begin := time.Now()
				end(f)
				require.NoError(t, f.stop())
				f.Wait()
				require.LessOrEqual(t, time.Since(begin), 22*time.Second)
				require.ErrorIs(t, <-ended, edge.ErrServerClosed)
				_, err = io.Copy(io.Discard, resp.Body)
				require.Error(t, err, "a cut download does not look whole")
				require.Contains(t, f.logs.String(), "requests did not end in time and were cut off")
			})
		})
	}
}

func TestDrainSendsHTTP2ClientsAway(t *testing.T) {
	t.Parallel()
	f := setup(t, onTLS(t))
	client, dialled := f.client(), 0
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, n, addr string) (net.Conn, error) { // see client
		dialled++
		return f.memory.DialContext(ctx, n, addr)
	}
	for range 3 {
		require.Equal(t, 200, f.send(client, "GET", "/livez", nil).Status)
	}
	require.Equal(t, 1, dialled)
	f.Drain(t.Context())
	for range 3 {
		require.Equal(t, 503, f.send(client, "GET", "/readyz", nil).Status)
	}
	require.Greater(t, dialled, 1, "GOAWAY")
}

func TestServeSpeaksNoOldTLS(t *testing.T) {
	t.Parallel()
	f := setup(t, onTLS(t), onTCP)
	for version, ok := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		cfg := f.trusts.Clone()
		cfg.MinVersion, cfg.MaxVersion = version, version
		err := tls.Client(f.dial("").Conn, cfg).HandshakeContext(t.Context())
		require.Equal(t, ok, err == nil, "%x: %v", version, err)
	}
	require.Equal(t, 400, f.ask("", livez), "nor none")
}

func TestServeTakesANewCertificate(t *testing.T) {
	t.Parallel()
	ca, dir := tlstest.NewAuthority(t), t.TempDir()
	cert, key := ca.Issue(t, dir, 1)
	pair, err := edge.OpenCertificate(cert, key, zerolog.Nop())
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, func(o *options) { o.deps.TLS = pair })
		serial := func() int64 {
			c := tls.Client(f.dial("").Conn, &tls.Config{InsecureSkipVerify: true})
			require.NoError(t, c.HandshakeContext(t.Context()))
			return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
		}
		require.EqualValues(t, 1, serial())
		ca.Issue(t, dir, 2)
		faketime.Pass(time.Minute)
		require.EqualValues(t, 2, serial())
	})
}

func TestPanicCostsItsRequestOnly(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *options) { o.do = func(context.Context, echo.Context) (any, error) { panic("secret detail") } })
	for _, line := range []string{"GET /get", "GET /admin"} { // as a process and without one
		r := f.dial("").Ask(edgetest.Request(line, keyed, "X-Admin-Key: "+adminKey, "X-Request-Id: the-one"))
		require.Equal(t, 500, r.Status)
		require.Contains(t, r.Body, `"error":"Internal server error"`)
		require.NotContains(t, r.Body, "secret")
	}
	require.Equal(t, 200, f.ask("", livez))
	require.Equal(t, 2, strings.Count(f.logs.String(), "request failed"), "each is logged once")
	require.Contains(t, f.logs.String(), "secret detail")
	require.Contains(t, f.logs.String(), `"request_id":"the-one"`)
}

// What happens to requests that are told to end, or that end in an unusual way, over HTTP/1.1 and
// HTTP/2. A reply that breaks off never looks whole.
func TestRequestsThatEndEarly(t *testing.T) {
	t.Parallel()
	type handler func(ctx context.Context, release <-chan struct{}) (any, error) // release: what a stuck one waits for
	quiet := func(f func()) handler {
		return func(context.Context, <-chan struct{}) (any, error) { f(); return nil, nil }
	}
	at := func(then func() error) func(int64) error {
		return func(at int64) error {
			if at >= 16<<20 {
				return then()
			}
			return nil
		}
	}
	for name, tt := range map[string]struct {
		path    string
		handle  handler      // of /get and /admin
		half    func() error // what happens after half of the file
		status  int          // 0: none
		told    bool         // the request is told to end
		stuck   bool         // until it is released
		crashes int64
	}{
		"one that ends when told": {path: "/get", told: true, status: 503, handle: func(ctx context.Context, _ <-chan struct{}) (any, error) {
			<-ctx.Done()
			return nil, edge.ErrDraining()
		}},
		"one that waits for its body":    {path: "/file", told: true, status: 503},
		"one that does not end":          {path: "/get", told: true, stuck: true, handle: func(_ context.Context, release <-chan struct{}) (any, error) { <-release; return "late", nil }},
		"one whose reply is stuck":       {path: "/file", told: true, stuck: true, half: func() error { return nil }},
		"one whose reply crashes":        {path: "/file", half: func() error { panic("a defect") }, crashes: 1},
		"one whose reply fails":          {path: "/file", half: func() error { return errors.New("unreadable") }},
		"one whose reply is aborted":     {path: "/file", half: func() error { panic(http.ErrAbortHandler) }},
		"one whose reply ends itself":    {path: "/file", half: func() error { runtime.Goexit(); return nil }},
		"one that aborts":                {path: "/get", handle: quiet(func() { panic(http.ErrAbortHandler) })},
		"one that ends its goroutine":    {path: "/get", handle: quiet(runtime.Goexit)},
		"an operator's that aborts":      {path: "/admin", handle: quiet(func() { panic(http.ErrAbortHandler) })},
		"an operator's that ends itself": {path: "/admin", handle: quiet(runtime.Goexit)},
	} {
		for protocol, two := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				secure := func(*options) {}
				if two {
					secure = onTLS(t)
				}
				synctest.Test(t, func(t *testing.T) {
					release, do := make(chan struct{}), &requests{}
					if tt.told {
						do.begun = make(chan func(error), 10)
					}
					f := setup(t, secure, func(o *options) {
						o.deps.Requests, o.file.size = do, 32<<20
						o.do = func(ctx context.Context, _ echo.Context) (any, error) { return tt.handle(ctx, release) }
						if tt.half != nil {
							o.file.read = at(func() error {
								if tt.stuck {
									<-release
								}
								return tt.half()
							})
						}
					})
					client := f.client()
					method, body := "GET", io.Reader(nil)
					if tt.path == "/file" && tt.half == nil {
						r, w := io.Pipe()
						method, body = "POST", r
						defer w.Close()
						go func() { _, _ = io.WriteString(w, partHead) }() // and no more
					}
					answered := make(chan edgetest.Reply, 1)
					go func() { answered <- f.send(client, method, tt.path, body) }()
					if tt.told {
						end := <-do.begun
						synctest.Wait()
						end(errors.New("told to end"))
					}
					got := <-answered
					require.Equal(t, tt.status, got.Status, got.Body)
					if tt.stuck {
						require.Contains(t, f.logs.String(), "request did not end when cancelled")
						require.Equal(t, 200, f.send(client, "GET", "/livez", nil).Status)
						require.Equal(t, 1, f.Running(), "it counts until it returns")
						close(release)
					} else {
						require.NotContains(t, f.logs.String(), "cut off")
					}
					synctest.Wait()
					require.Zero(t, f.Running())
					require.Zero(t, f.metric("takt_http_requests_running"))
					require.Equal(t, 200, f.send(client, "GET", "/livez", nil).Status)
					require.Equal(t, tt.crashes, do.crashes.Load())
					require.Equal(t, tt.status > 0 || tt.crashes > 0, strings.Contains(f.logs.String(), "request failed"), "else nobody writes")
					require.False(t, method == "GET" && strings.Contains(f.logs.String(), `"client_gone":true`))
				})
			})
		}
	}
}

func TestRequestWhoseClientReadsNothingLosesItsConnection(t *testing.T) {
	t.Parallel()
	for _, secure := range []func(o *options){func(*options) {}, onTLS(t)} {
		synctest.Test(t, func(t *testing.T) {
			do := &requests{begun: make(chan func(error), 1)}
			f := setup(t, secure, func(o *options) { o.deps.Requests, o.file.size = do, 32<<20 })
			resp := f.begin(f.client(), "GET", "/file") //nolint:bodyclose // see begin
			(<-do.begun)(errors.New("told to end"))
			faketime.Pass(2 * time.Second)
			require.Zero(t, f.Running())
			_, err := io.Copy(io.Discard, resp.Body)
			require.Error(t, err)
		})
	}
}

// What has arrived is recorded also if its client leaves, but not after the request's process ended.
func TestRequestKeepsWhatArrivedUntilItsProcessEnds(t *testing.T) {
	t.Parallel()
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			do, began := &requests{begun: make(chan func(error), 1)}, make(chan context.Context, 1)
			f := setup(t, func(o *options) {
				o.deps.Requests = do
				o.do = func(ctx context.Context, c echo.Context) (any, error) {
					_, _ = edge.ReadBody(c)
					kept, end := edge.Watched(c.Request()).Keep(ctx)
					defer end()
					began <- kept
					<-kept.Done()
					return nil, context.Cause(kept)
				}
			})
			c := f.dial("")
			c.Send(edgetest.Request("POST /json", keyed, "Content-Length: 2") + "{}")
			end, recording := <-do.begun, <-began
			if leaves {
				require.NoError(t, c.Close())
				synctest.Wait()
				require.NoError(t, recording.Err())
			}
			end(errors.New("told to end"))
			<-recording.Done()
			require.ErrorContains(t, context.Cause(recording), "given up")
			synctest.Wait()
			require.Zero(t, f.Running())
		})
	}
}
