package http_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/heijunka"
	"takt/actors/otp"
	takthttp "takt/http"
	"takt/http/edge"
	"takt/store"
)

// slowClients is how many slow clients come at once: more than any pool has places.
const slowClients = 100

// browser logs in on p with key and returns the head of a request with the session.
func browser(t *testing.T, p *pipes, key string) (request func(method, path, more string) string) {
	t.Helper()
	c, r := p.dial()
	defer c.Close()
	form := "key=" + key + "&name=tester"
	write(t, c, "POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"+formHead(len(form))+form)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 303, resp.StatusCode)
	cookie := resp.Cookies()[0].String()
	return func(method, path, more string) string {
		return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nCookie: " + cookie + "\r\n" + more
	}
}

func formHead(size int) string {
	return "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: " + strconv.Itoa(size) + "\r\n\r\n"
}

func TestSlowClientsDoNotShutOutTheDashboard(t *testing.T) {
	t.Parallel()
	const late = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nkey"
	stranger := func(text string) func(func(method, path, more string) string) string {
		return func(func(method, path, more string) string) string { return text }
	}
	for name, slow := range map[string]func(session func(method, path, more string) string) string{
		"strangers whose login does not come":     stranger("POST /login HTTP/1.1\r\nHost: localhost\r\n" + late),
		"strangers who do not read the login":     stranger("GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"strangers who do not read the style":     stranger("GET /assets/dash.css HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"strangers whose refused form comes late": stranger("POST /builds/x/cancel HTTP/1.1\r\nHost: localhost\r\n" + late),
		"sessions whose form does not come": func(session func(method, path, more string) string) string {
			return session("POST", "/builds/x/cancel", late)
		},
		"sessions that do not read a page": func(session func(method, path, more string) string) string { return session("GET", "/tree", "\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := fakeTimeWith(t, func(d *takthttp.Deps) {
					d.Tree, d.Ready = bigTree(10<<10), func() bool { return false } // there is no database
				})
				session := browser(t, p, apiKey)
				begin := time.Now()
				for range slowClients {
					c, _ := p.dial()
					defer c.Close()
					write(t, c, slow(session))
				}
				synctest.Wait() // all of them hold what they can
				c, r := p.dial()
				defer c.Close()
				write(t, c, session("GET", "/tree", "\r\n"))
				require.Equal(t, 200, read(t, r).status)
				require.Zero(t, time.Since(begin), "at once")
			})
		})
	}
}

// countedBody counts the bytes that are read from it.
type countedBody struct {
	io.Reader
	read int
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read += n
	return n, err
}

func (b *countedBody) Close() error { return nil }

func TestRefusedPostsLeaveTheirBodiesUnread(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	const wrong = "wrong-key-0123456789"
	for name, header := range map[string]map[string]string{
		"nothing": {},
		"wrong keys": {
			"X-API-Key": wrong, "X-Admin-Key": wrong, "X-Build-Token": wrong, "X-Worker-Token": wrong, "X-Worker-Id": "w", "X-Build-Id": "x",
			"X-HubSpot-Signature-v3": wrong, "Cookie": d.cookie + "x", "Sec-Fetch-Site": "same-origin",
		},
		"another site": {"Cookie": d.cookie, "Sec-Fetch-Site": "cross-site"},
	} {
		for _, r := range d.server.Routes() {
			if r.Method != http.MethodPost || name != "another site" && (r.Path == "/login" || r.Path == "/logout") {
				continue // anybody may log in
			}
			const size = 200 << 10 // more, and takt would read and discard it
			body := &countedBody{Reader: strings.NewReader("back=" + strings.Repeat("x", size-5))}
			req := httptest.NewRequest(http.MethodPost, strings.NewReplacer(":id", "x", ":name", "x", "*", "takt/x/restart").Replace(r.Path), body)
			req.ContentLength = size
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			for k, v := range header {
				req.Header.Set(k, v)
			}
			w := httptest.NewRecorder()
			d.server.Handler().ServeHTTP(w, req)
			require.Contains(t, []int{401, 403, 404}, w.Code, "%s: %s", r.Path, name)
			require.Zero(t, body.read, "%s: %s", r.Path, name)
		}
	}
}

// levelled are requests in the pools that heijunka has, without its actors.
func levelled() *heijunka.Heijunka {
	run := func(ctx context.Context, _ string, _ *store.Work, fn func(context.Context) error) error {
		return fn(ctx)
	}
	return heijunka.New(otp.New(otp.Options{Logger: zerolog.Nop()}), heijunka.Deps{Run: run}, heijunka.Config{})
}

// oneBuild is a store with one build, which is submitted first.
type oneBuild struct{ roomy }

const oneToken = "the-token-of-the-build"

func (s oneBuild) Submit(ctx context.Context, in store.Submission, files ...store.Staged) (store.Build, error) {
	b := store.Build{ID: in.ID, Platform: in.Platform, State: store.Building, WorkerID: "holder", SubmittedAt: time.Now(), Source: &in.Source, TokenHash: store.HashToken(oneToken)}
	if s.build.ID == "" {
		s.build = b
	}
	return b, commitAll(ctx, files)
}

// fakePools serves one build, of a megabyte, with pools of limited sizes in fake time.
func fakePools(t *testing.T, requests edge.Requests) (p *pipes, submit func(from string) int) {
	t.Helper()
	p = fakeTimeWith(t, func(d *takthttp.Deps) {
		i := oneBuild{roomy{&instant{}}}
		d.Builds, d.Queue, d.Requests, d.Audit = i, i, requests, silentAudit{}
	})
	kind, body := form(source(strings.Repeat("s", 1<<20)), part{name: "platform", content: "ios"})
	submit = func(from string) int {
		c, r := p.dialFrom(from)
		defer c.Close()
		write(t, c, "POST /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\nContent-Type: "+kind+
			"\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+string(body))
		return read(t, r).status
	}
	require.Equal(t, 201, submit("10.0.0.9"))
	return p, submit
}

func TestSlowClientsLeaveTransfersToOthers(t *testing.T) {
	t.Parallel()
	const upload = "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000000\r\n\r\n--b\r\n"
	for name, slow := range map[string]string{
		"submits that do not come":                 "POST /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + apiKey + "\r\n" + upload,
		"results that do not come":                 "POST /api/workers/upload HTTP/1.1\r\nHost: takt\r\nX-Worker-Id: holder\r\nX-API-Key: " + apiKey + "\r\n" + upload,
		"downloads with the key that are not read": "GET /api/builds/b/download/source HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + apiKey + "\r\n\r\n",
		"downloads with a token that are not read": "GET /api/builds/b/download/source HTTP/1.1\r\nHost: takt\r\nX-Build-Token: " + oneToken + "\r\n\r\n",
		"sources that a worker does not read":      "GET /api/builds/b/source HTTP/1.1\r\nHost: takt\r\nX-Worker-Id: holder\r\nX-API-Key: " + apiKey + "\r\n\r\n",
		"downloads of a session that are not read": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, submit := fakePools(t, levelled())
				if slow == "" {
					slow = browser(t, p, apiKey)("GET", "/builds/b/download/source", "\r\n")
				}
				begin := time.Now()
				for range 3 * slowClients {
					c, _ := p.dialFrom("10.0.0.1")
					defer c.Close()
					write(t, c, slow)
				}
				synctest.Wait() // all of them hold what they can
				require.Equal(t, 201, submit("10.0.0.2"))
				c, r := p.dialFrom("10.0.0.2")
				defer c.Close()
				write(t, c, "GET /api/builds/b/download/source HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\n\r\n")
				require.Equal(t, 200, read(t, r).status)
				require.Zero(t, time.Since(begin), "at once")
			})
		})
	}
}

func TestADownloadThatIsReadSlowlyIsCut(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rate int // bytes a second
		cut  bool
	}{"at 5 kB/s": {5000, true}, "at 16 kB/s": {16000, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, _ := fakePools(t, levelled())
				c, r := p.dial()
				defer c.Close()
				write(t, c, "GET /api/builds/b/download/source HTTP/1.1\r\nHost: takt\r\nX-Build-Token: "+oneToken+"\r\n\r\n")
				begin, n, err := time.Now(), int64(0), error(nil)
				for err == nil && n < 1<<20 {
					time.Sleep(time.Second) //nolint:forbidigo // fake time
					var more int64
					more, err = io.CopyN(io.Discard, r, int64(tt.rate))
					n += more
				}
				if tt.cut {
					require.ErrorIs(t, err, io.EOF)
					require.LessOrEqual(t, time.Since(begin), 2*time.Minute)
				} else {
					require.GreaterOrEqual(t, n, int64(1<<20), "%v", err)
				}
			})
		})
	}
}

func TestFiftyUploadsOfOneAddressRunAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		do := &counted{}
		_, submit := fakePools(t, do)
		do.hold = make(chan struct{})
		answers := make(chan int, 50)
		for range 50 {
			go func() { answers <- submit("10.0.0.1") }()
		}
		synctest.Wait()
		require.EqualValues(t, 50, do.admitted.Load())
		close(do.hold)
		for range 50 {
			require.Equal(t, 201, <-answers)
		}
	})
}

func (oneBuild) Heartbeat(context.Context, store.Beat) (store.BeatReply, error) {
	return store.BeatReply{}, nil
}

func (oneBuild) Cancel(context.Context, string) error { return nil }

func TestBodiesThatDoNotComeLeavePlacesToOthers(t *testing.T) {
	t.Parallel()
	const (
		withKey   = "X-API-Key: " + apiKey + "\r\n"
		withToken = "X-Build-Token: " + oneToken + "\r\n"
		monitor   = "X-Build-Id: b\r\n"
	)
	// head begins a request by a worker with a body of size bytes.
	head := func(path, credential, worker string, size int) string {
		return "POST " + path + " HTTP/1.1\r\nHost: takt\r\n" + credential + "X-Worker-Id: " + worker +
			"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(size) + "\r\n\r\n"
	}
	for slow, honest := range map[[2]string]string{
		{"/api/workers/register", withKey}:             "/api/builds/b/heartbeat?worker_id=holder",
		{"/api/workers/unregister", withKey}:           "/api/builds/b/heartbeat?worker_id=holder",
		{"/api/builds/b/logs", withKey}:                "/api/builds/b/heartbeat?worker_id=holder",
		{"/api/builds/b/heartbeat", withKey}:           "/api/builds/b/heartbeat?worker_id=holder",
		{"/api/diagnostics/report", withKey}:           "/api/builds/b/heartbeat?worker_id=holder",
		{"/api/builds/b/telemetry", withKey + monitor}: "/api/builds/b/heartbeat?worker_id=holder",
		{"/api/builds/b/telemetry", monitor}:           "/api/builds/b/heartbeat?worker_id=holder",
		{"/api/config", withKey}:                       "/api/builds/b/cancel",
		{"/api/deployments", withKey}:                  "/api/builds/b/cancel",
		{"/api/builds/b/cancel", withKey}:              "/api/builds/b/cancel",
		{"/api/builds/b/retry", withToken}:             "/api/builds/b/cancel",
	} {
		for _, size := range []int{1000, 100000} {
			t.Run(fmt.Sprint(slow, size), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					p, _ := fakePools(t, levelled())
					begin := time.Now()
					for range 3 * slowClients {
						c, _ := p.dialFrom("10.0.0.1")
						defer c.Close()
						write(t, c, head(slow[0], slow[1], "holder", size)+"{")
					}
					synctest.Wait() // all of them hold what they can
					c, r := p.dialFrom("10.0.0.2")
					defer c.Close()
					write(t, c, head(honest, withKey, "other", size)+"{}"+strings.Repeat(" ", size-2))
					got := read(t, r)
					require.Equal(t, 200, got.status, got.body)
					require.Zero(t, time.Since(begin), "at once")
				})
			})
		}
	}
}

func TestABodyThatStandsStillIsAnsweredAlsoWhenTheServerStops(t *testing.T) {
	t.Parallel()
	for name, length := range map[string]string{
		"small": "Content-Length: 1000", "large": "Content-Length: 100000", "chunked": "Transfer-Encoding: chunked",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				places := levelled()
				p, _ := fakePools(t, places)
				c, r := p.dial()
				defer c.Close()
				write(t, c, "POST /api/workers/register HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\n"+length+"\r\n\r\n"+chunkOf("{"))
				synctest.Wait()
				require.Zero(t, places.Status().Regulator.Load)
				begin := time.Now()
				p.stop()
				got := read(t, r)
				require.Equal(t, 400, got.status, got.body)
				require.Equal(t, 5*time.Second, time.Since(begin))
			})
		})
	}
}
