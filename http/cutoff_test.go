package http_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/heijunka"
	"takt/actors/otp"
	"takt/actors/request"
	takthttp "takt/http"
	"takt/http/api"
	"takt/http/edge"
	"takt/http/tlstest"
	"takt/storage"
	"takt/store"
)

// processes runs each request as a process that a test can end.
type processes struct {
	sys      *otp.System
	requests request.Requests
	begun    chan *otp.Proc
	crashes  atomic.Int32
}

func newProcesses(t *testing.T) *processes {
	t.Helper()
	sys, pools := otp.New(otp.Options{Logger: zerolog.Nop()}), heijunka.Names()
	_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{
		{ID: "request_sup", Supervisor: func() otp.SupSpec { return otp.SupSpec{Children: request.Specs(pools...)} }},
	}})
	require.NoError(t, err)
	t.Cleanup(func() { sys.Shutdown(context.WithoutCancel(t.Context())) })
	return &processes{sys: sys, requests: request.New(sys, pools...), begun: make(chan *otp.Proc, 1)}
}

func (p *processes) Do(ctx context.Context, w store.Work, fn func(context.Context) error) error {
	err := p.requests.Run(ctx, w.Domain, &w, func(ctx context.Context) error {
		children, _ := otp.WhichChildren(context.WithoutCancel(ctx), p.sys.Ref("takt/request_sup/"+w.Domain))
		for _, child := range children {
			if strings.HasSuffix(child.Proc.Path(), w.String()) {
				select {
				case p.begun <- child.Proc:
				default: // nobody wants to end it
				}
			}
		}
		return fn(ctx)
	})
	if _, crashed := errors.AsType[*otp.PanicError](err); crashed {
		p.crashes.Add(1)
	}
	return err
}

// result is a store with one build, whose file is read by read.
type result struct {
	takthttp.Builds
	takthttp.Files
	read func(p []byte, at int64) (int, error)
}

const resultSize = 32 << 20

func (r *result) Find(context.Context, string) (store.Build, error) {
	return store.Build{ID: "b", Platform: store.IOS, State: store.Completed, Result: &store.File{Name: "r", Size: resultSize}}, nil
}

func (r *result) Open(context.Context, store.File) (*storage.File, error) {
	return &storage.File{Content: &content{read: r.read}}, nil
}

// content is a file that is read by a function.
type content struct {
	io.ReaderAt
	read func(p []byte, at int64) (int, error)
	at   int64
}

func (c *content) Read(p []byte) (int, error) {
	n, err := c.read(p, c.at)
	c.at += int64(n)
	return n, err
}

func (c *content) Seek(offset int64, whence int) (int64, error) {
	c.at = offset
	if whence == io.SeekEnd {
		c.at += resultSize
	}
	return c.at, nil
}

func (c *content) Close() error { return nil }

// half reads the first half of a file and then does what then does.
func half(then func() error) func(p []byte, at int64) (int, error) {
	return func(p []byte, at int64) (int, error) {
		if at >= resultSize/2 {
			return 0, then()
		}
		return len(p), nil
	}
}

// cut is a server whose requests can be ended.
type cut struct {
	*testing.T
	url       string
	server    *takthttp.Server
	client    *http.Client
	logs      *logs
	processes *processes
	release   chan struct{} // what a stuck handler waits for
}

// onBoth runs a test over HTTP/1.1 and over HTTP/2.
func onBoth(t *testing.T, deps func(release <-chan struct{}) takthttp.Deps, test func(c *cut)) {
	t.Helper()
	for name, two := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := tlstest.NewAuthority(t)
			cert, key := ca.Issue(t, t.TempDir(), 1)
			pair, err := edge.OpenCertificate(cert, key, zerolog.Nop())
			require.NoError(t, err)
			c := &cut{T: t, release: make(chan struct{}), processes: newProcesses(t)}
			d := deps(c.release)
			d.TLS, d.Requests = pair, c.processes
			c.server, c.logs = newServer(t, d, func(cfg *takthttp.Config) { cfg.RequestGrace, cfg.MaxBypass = 100*time.Millisecond, 1 })
			url, _ := serve(t, c.server, listen(t))
			c.url = strings.Replace(url, "http://", "https://", 1)
			c.client = tlsClient(t, &tls.Config{RootCAs: ca.Pool()}, two)
			test(c)
		})
	}
}

var errEnd = errors.New("told to end")

func (c *cut) get(path string) <-chan reply {
	c.Helper()
	return begin(c.T, c.client, "GET", c.url+path, key("X-Admin-Key", adminKey), nil)
}

// end tells the request that has just begun to end.
func (c *cut) end() { (<-c.processes.begun).Exit(errEnd) }

// requireIdle checks that the server answers, and counts no request as running.
func (c *cut) requireIdle() {
	c.Helper()
	require.Equal(c, 200, (<-c.get("/livez")).status)
	require.Eventually(c, func() bool { return c.running() == 0 }, waitFor, tick)
}

// running is how many requests are counted as running.
func (c *cut) running() (n float64) {
	c.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c.server.Metrics())
	families, err := r.Gather()
	require.NoError(c, err)
	for _, f := range families {
		if f.GetName() == "takt_http_requests_running" {
			for _, m := range f.GetMetric() {
				n += m.GetGauge().GetValue()
			}
		}
	}
	return n
}

// requireBroken checks that a request got no reply, or one that breaks off.
func (c *cut) requireBroken(got reply) {
	c.Helper()
	require.Zero(c, got.status, "it looks whole")
	require.NotContains(c, got.body, "Client.Timeout", "the server has done it")
}

// found are dependencies of a server whose requests for builds do this.
func found(do func(ctx context.Context) error) takthttp.Deps {
	return takthttp.Deps{Builds: finder{find: func(ctx context.Context) (store.Build, error) { return store.Build{}, do(ctx) }}}
}

func TestRequestThatEndsWhenToldIsAnswered(t *testing.T) {
	t.Parallel()
	onBoth(t, func(<-chan struct{}) takthttp.Deps {
		return found(func(ctx context.Context) error {
			<-ctx.Done()
			return store.Wrap(store.Unavailable, "ended", context.Cause(ctx))
		})
	}, func(c *cut) {
		for range 3 { // also on the same connection
			answered := c.get("/api/builds/b")
			c.end()
			require.Equal(c, 503, (<-answered).status)
		}
		c.requireIdle()
		require.NotContains(c, c.logs.String(), "cut off")
		require.NotContains(c, c.logs.String(), `"client_gone":true`)
	})
}

// emptyFiles have room.
type emptyFiles struct{ takthttp.Files }

func (emptyFiles) Room() error { return nil }

func TestRequestThatWaitsForItsBodyIsAnsweredWhenToldToEnd(t *testing.T) {
	t.Parallel()
	queue := roomy{&instant{}}
	onBoth(t, func(<-chan struct{}) takthttp.Deps {
		return takthttp.Deps{Builds: queue, Queue: queue, Files: emptyFiles{}}
	}, func(c *cut) {
		for range 3 {
			body, w := io.Pipe()
			answered := begin(c.T, c.client, "POST", c.url+"/api/builds", key("Content-Type", "multipart/form-data; boundary=b"), body)
			_, err := io.WriteString(w, "--b\r\n")
			require.NoError(c, err)
			c.end()
			got := <-answered
			require.Equal(c, 503, got.status, got.body)
			requireProblem(c.T, got, "The request was given up, try again later", "unavailable")
			require.NoError(c, w.Close())
		}
		c.requireIdle()
	})
}

func TestRequestThatDoesNotEndLosesItsConnection(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(p *otp.Proc){
		"told to end": func(p *otp.Proc) { p.Exit(errEnd) },
		"killed":      (*otp.Proc).Kill,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(release <-chan struct{}) takthttp.Deps {
				return found(func(context.Context) error { <-release; return nil })
			}, func(c *cut) {
				broken := c.get("/api/builds/b")
				proc := <-c.processes.begun
				end(proc)
				c.requireBroken(<-broken)
				require.Contains(c, c.logs.String(), "request did not end when cancelled")
				require.Equal(c, 200, (<-c.get("/livez")).status)
				require.InDelta(c, 1, c.running(), 0, "it counts until it returns")
				if how == "killed" {
					<-proc.Done()
					require.Equal(c, 1, c.processes.sys.Leaked())
				}
				close(c.release)
				c.requireIdle()
				require.Zero(c, c.processes.sys.Leaked())
				require.NotContains(c, c.logs.String(), "request failed", "and then nobody writes")
			})
		})
	}
}

// stuck is a queue and a store of deployments that wait until they are released.
type stuck struct {
	takthttp.Queue
	takthttp.DeploymentStore
	release <-chan struct{}
}

func (s stuck) Arrive(context.Context, store.PollRequest, time.Duration) (store.AwaitReply, error) {
	<-s.release
	return nil, errEnd
}

func (s stuck) Find(context.Context, string) (store.Deployment, error) {
	<-s.release
	return store.Deployment{}, errEnd
}

func TestPollOrStreamThatIsStuckBeforeItWaitsLosesItsConnection(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"poll":                 "/api/workers/poll?wait=60&worker_id=w",
		"stream of logs":       "/api/builds/b/logs",
		"stream of deployment": "/api/deployments/d/events",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(release <-chan struct{}) takthttp.Deps {
				d, s := found(func(context.Context) error { <-release; return errEnd }), stuck{release: release}
				d.Queue, d.DeploymentStore, d.Tokens = s, s, tokensOf(t)
				return d
			}, func(c *cut) {
				broken := begin(c.T, c.client, "GET", c.url+path, key("Accept", "text/event-stream"), nil)
				c.end()
				c.requireBroken(<-broken)
				close(c.release)
				c.requireIdle()
			})
		})
	}
}

func TestReplyThatIsStuckHalfwayLosesItsConnection(t *testing.T) {
	t.Parallel()
	onBoth(t, func(release <-chan struct{}) takthttp.Deps {
		r := &result{read: half(func() error { <-release; return io.EOF })}
		return takthttp.Deps{Builds: r, Files: r}
	}, func(c *cut) {
		broken := c.get("/api/builds/b/download")
		c.end()
		c.requireBroken(<-broken)
		close(c.release)
		c.requireIdle()
	})
}

func TestReplyToAClientThatReadsNothingLosesItsConnection(t *testing.T) {
	t.Parallel()
	onBoth(t, func(<-chan struct{}) takthttp.Deps {
		r := &result{read: func(p []byte, _ int64) (int, error) { return len(p), nil }}
		return takthttp.Deps{Builds: r, Files: r}
	}, func(c *cut) {
		req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.url+"/api/builds/b/download", nil)
		require.NoError(c, err)
		req.Header.Set("X-API-Key", apiKey)
		resp, err := c.client.Do(req) // its body is not read
		require.NoError(c, err)
		c.end()
		require.Eventually(c, func() bool { return c.running() == 0 }, waitFor, tick)
		_, err = io.Copy(io.Discard, resp.Body)
		require.Error(c, err)
		require.NoError(c, resp.Body.Close())
	})
}

func TestReplyThatBreaksOffDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		then    func() error
		crashes int
	}{
		"a crash":                 {func() error { panic("a defect") }, 1},
		"an error":                {func() error { return errors.New("unreadable") }, 0},
		"net/http's own way":      {func() error { panic(http.ErrAbortHandler) }, 0},
		"the goroutine's own end": {func() error { runtime.Goexit(); return nil }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(<-chan struct{}) takthttp.Deps {
				r := &result{read: half(tt.then)}
				return takthttp.Deps{Builds: r, Files: r}
			}, func(c *cut) {
				c.requireBroken(<-c.get("/api/builds/b/download"))
				c.requireIdle()
				require.EqualValues(c, tt.crashes, c.processes.crashes.Load())
			})
		})
	}
}

func TestRequestThatBreaksOffGetsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(){
		"net/http's own way":      func() { panic(http.ErrAbortHandler) },
		"the goroutine's own end": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(<-chan struct{}) takthttp.Deps {
				d := found(func(context.Context) error { do(); return nil })
				d.Tree = func(bool) api.TreeNode { do(); return api.TreeNode{} }
				return d
			}, func(c *cut) {
				for _, path := range []string{"/api/builds/b", "/admin/tree", "/admin/tree"} { // levelled and direct
					c.requireBroken(<-c.get(path))
				}
				c.requireIdle()
				require.Zero(c, c.processes.crashes.Load())
				require.NotContains(c, c.logs.String(), "request failed")
			})
		})
	}
}

// locked is a store whose build's row somebody has locked.
type locked struct {
	finder
	began chan context.Context
}

func (l locked) Finish(ctx context.Context, _ store.Result, _ ...store.Staged) (bool, error) {
	l.began <- ctx
	<-ctx.Done()
	return false, context.Cause(ctx)
}

func TestARecordThatWaitsEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	began := make(chan context.Context, 1)
	b := locked{began: began, finder: finder{find: func(context.Context) (store.Build, error) {
		return store.Build{ID: "b", WorkerID: "w", State: store.Assigned}, nil
	}}}
	c := &cut{T: t, processes: newProcesses(t)}
	c.server, c.logs = newServer(t, takthttp.Deps{Builds: b, Files: emptyFiles{}, Requests: c.processes}, func(cfg *takthttp.Config) {
		cfg.RequestGrace = 100 * time.Millisecond
	})
	url, _ := serve(t, c.server, listen(t))
	c.url, c.client = url, http.DefaultClient
	for _, leaves := range []bool{false, true} {
		id, who, ok := uploadParts("b", "w", "false")
		kind, body := form(id, who, ok)
		ctx, leave := context.WithCancelCause(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/api/workers/upload", strings.NewReader(string(body)))
		require.NoError(t, err)
		req.Header.Set("X-API-Key", apiKey)
		req.Header.Set("Content-Type", kind)
		answered := make(chan error, 1)
		go func() {
			_, err := http.DefaultClient.Do(req) //nolint:bodyclose // there is none
			answered <- err
		}()
		proc, recording := <-c.processes.begun, <-began
		if leaves {
			leave(nil)
			require.Error(t, <-answered)
			require.NoError(t, recording.Err(), "what has arrived is recorded all the same")
		}
		proc.Exit(otp.ErrShutdown)
		<-recording.Done()
		require.ErrorContains(t, context.Cause(recording), "given up")
		<-proc.Done()
		require.Zero(t, c.processes.sys.Leaked())
		leave(nil)
	}
	c.requireIdle()
}
