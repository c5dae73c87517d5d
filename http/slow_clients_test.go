package http_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/heijunka"
	"takt/actors/otp"
	takthttp "takt/http"
	"takt/http/api"
	"takt/http/edge/edgetest"
	"takt/http/hubspottest"
	"takt/storage"
	"takt/store"
	"takt/store/hubspot"
	"takt/store/seal"
	"takt/store/storetest/faketime"
)

// What slow and hostile clients do to the product's own endpoints. What they do to any is in
// http/edge.

// roomy is an instant store with a queue that is never full.
type roomy struct{ *instant }

func (roomy) Full(context.Context) error { return nil }
func (roomy) Enqueued(store.Build)       {}
func (roomy) Submit(ctx context.Context, s store.Submission, files ...store.Staged) (store.Build, error) {
	return store.Build{ID: s.ID, Platform: s.Platform, State: store.Pending, SubmittedAt: time.Now()}, commitAll(ctx, files)
}

// setupFakeTime serves in memory, for a test in fake time: without a database, and with a store
// that agrees to everything.
func setupFakeTime(t *testing.T, replace func(*takthttp.Deps), change ...func(*takthttp.Config)) (*edgetest.Listener, *takthttp.Server) {
	t.Helper()
	local, err := storage.OpenLocal(t.TempDir(), seal.NewRing(seal.Key{}))
	require.NoError(t, err)
	files, err := storage.NewFiles(storage.ModeLocal, local, nil)
	require.NoError(t, err)
	i := roomy{&instant{}}
	deps := takthttp.Deps{Builds: i, Queue: i, Files: files, Ready: func() bool { return false }, OAuth: installer{}, Tree: bigTree(10)}
	replace(&deps)
	s, _ := newServer(t, deps, change...)
	ctx, cancel := context.WithCancelCause(t.Context())
	ln, ended := edgetest.Listen(), make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel(nil)
		require.NoError(t, <-ended)
		s.Wait()
		require.NoError(t, local.Close())
	})
	return ln, s
}

// bigTree is a reply of so many bytes.
func bigTree(size int) func(bool) api.TreeNode {
	return func(bool) api.TreeNode { return api.TreeNode{ID: strings.Repeat("t", size), Path: "takt"} }
}

// session logs in and returns a function that makes requests of the session.
func session(t *testing.T, ln *edgetest.Listener, from, key string) func(line string, headers ...string) string {
	t.Helper()
	form := "key=" + key + "&name=tester"
	got := ln.Dial(t, from).Ask(browserRequest("POST /login", "Content-Length: "+strconv.Itoa(len(form))) + form)
	require.Equal(t, 303, got.Status)
	cookie, _, _ := strings.Cut(got.Header.Get("Set-Cookie"), ";")
	return func(line string, headers ...string) string {
		return browserRequest(line, append(headers, "Cookie: "+cookie)...)
	}
}

// browserRequest is a request of a page of this server.
func browserRequest(line string, headers ...string) string {
	r := edgetest.Request(line, append(headers, "Sec-Fetch-Site: same-origin", "Content-Type: application/x-www-form-urlencoded")...)
	return strings.Replace(r, "Host: takt", "Host: localhost", 1)
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

func (oneBuild) Heartbeat(context.Context, store.Heartbeat) (store.HeartbeatReply, error) {
	return store.HeartbeatReply{}, nil
}

// slowClients is how many slow clients come at once: more than any pool has places.
const slowClients = 300

// Whatever slow clients of one address hold, others are served at once: submits, downloads,
// workers and the dashboard.
func TestSlowClientsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	const withKey, withToken, download, late = "X-API-Key: " + apiKey, "X-Build-Token: " + oneToken, "GET /api/builds/b/download/source", "Content-Length: 100"
	kind, body := form(source(strings.Repeat("s", 1<<20)), part{name: "platform", content: "ios"})
	submit := edgetest.Request("POST /api/builds", withKey, "Content-Type: "+kind, "Content-Length: "+strconv.Itoa(len(body)))
	for name, slow := range map[string]string{
		"submits that do not come":              submit,
		"results that do not come":              edgetest.Request("POST /api/workers/upload", withKey, "X-Worker-Id: holder", "Content-Type: "+kind, "Content-Length: 1000000"),
		"a key's downloads that nobody reads":   edgetest.Request(download, withKey),
		"a token's downloads that nobody reads": edgetest.Request(download, withToken),
		"sources that their worker reads not":   edgetest.Request("GET /api/builds/b/source", withKey, "X-Worker-Id: holder"),
		"retries that do not come":              edgetest.Request("POST /api/builds/b/retry", withToken, "Content-Length: 1000"),
		"heartbeats that do not come":           edgetest.Request("POST /api/builds/b/heartbeat", withKey, "X-Worker-Id: holder", "Content-Length: 100000") + "{",
		"logins that do not come":               browserRequest("POST /login", late),
		"logins that nobody reads":              browserRequest("GET /login"),
		"a style that nobody reads":             browserRequest("GET /assets/dash.css"),
		"forms that are refused":                browserRequest("POST /builds/x/cancel", late),
		"a session's downloads":                 "GET /builds/b/download/source",
		"a session's forms":                     "POST /builds/x/cancel",
		"a session's pages":                     "GET /tree",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ln, _ := setupFakeTime(t, func(d *takthttp.Deps) {
					i := oneBuild{roomy{&instant{}}}
					d.Builds, d.Queue, d.Requests, d.Audit, d.Tree = i, i, levelled(), silentAudit{}, bigTree(10<<10)
				})
				require.Equal(t, 201, ln.Dial(t, "10.0.0.9").Ask(submit+string(body)).Status)
				own := session(t, ln, "10.0.0.9", apiKey)
				if !strings.Contains(slow, "\r\n") {
					slow = own(slow, late)
				}
				begin := time.Now()
				for range slowClients {
					c := ln.Dial(t, "10.0.0.1")
					go func() { _, _ = io.WriteString(c.Conn, slow) }()
				}
				synctest.Wait() // all of them hold what they can
				for want, request := range map[string]string{
					"201": submit + string(body), "200": edgetest.Request(download, withKey), "200 ": own("GET /tree"),
					"200  ": edgetest.Request("POST /api/builds/b/heartbeat?worker_id=w", withKey, "X-Worker-Id: other", "Content-Type: application/json", "Content-Length: 2") + "{}",
				} {
					require.Equal(t, strings.TrimSpace(want), strconv.Itoa(ln.Dial(t, "10.0.0.2").Ask(request).Status), "%.60q", request)
				}
				if strings.HasPrefix(name, "a token's") {
					require.Equal(t, 503, ln.Dial(t, "10.0.0.3").Ask(slow).Status, "so many downloads of one build")
				}
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
			require.Contains(t, []int{401, 403, 404, 415}, w.Code, "%s: %s", r.Path, name)
			require.Zero(t, body.read, "%s: %s", r.Path, name)
		}
	}
}

// signedHead is a webhook without its body, which comes in chunks.
func signedHead(change func(http.Header)) string {
	h := http.Header{}
	hubspottest.Sign(h, clientSecret, "POST", "http://takt/api/hubspot/action", []byte("{}"), time.Now())
	change(h)
	var text strings.Builder
	text.WriteString("POST /api/hubspot/action HTTP/1.1\r\nHost: takt\r\nTransfer-Encoding: chunked\r\n")
	_ = h.Write(&text)
	return text.String() + "\r\n"
}

func TestWebhooksWithoutAPossibleSignatureAreRefusedUnread(t *testing.T) {
	t.Parallel()
	ln, _ := setupFakeTime(t, func(*takthttp.Deps) {}, signed)
	v2 := func(signature, version string) func(http.Header) {
		return func(h http.Header) {
			h.Del(hubspot.HeaderSignatureV3)
			h.Set(hubspot.HeaderSignature, signature)
			h.Set(hubspot.HeaderVersion, version)
		}
	}
	for name, change := range map[string]func(http.Header){
		"none":              func(h http.Header) { clear(h) },
		"v3, not base64":    func(h http.Header) { h.Set(hubspot.HeaderSignatureV3, "!") },
		"v3, too short":     func(h http.Header) { h.Set(hubspot.HeaderSignatureV3, "YWJj") },
		"v3, without time":  func(h http.Header) { h.Del(hubspot.HeaderTimestamp) },
		"v3, of yesterday":  func(h http.Header) { h.Set(hubspot.HeaderTimestamp, "1700000000000") },
		"v2, not hex":       v2(strings.Repeat("g", 64), "v2"),
		"v1, too long":      v2(strings.Repeat("a", 66), "v1"),
		"a version unknown": v2(strings.Repeat("a", 64), "v9"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ln.Dial(t, "").Ask(signedHead(change)) // the body never comes
			require.Equal(t, 401, got.Status)
			require.Contains(t, got.Body, "Invalid signature")
		})
	}
}

// A webhook that comes slowly is not admitted; its address has a share of such bodies.
func TestWebhooksAreReadBeforeTheyAreAdmitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var admitted atomic.Int64
		ln, _ := setupFakeTime(t, func(d *takthttp.Deps) { d.Requests = counted{&admitted} }, signed)
		head := signedHead(func(http.Header) {})
		begin, slow := time.Now(), make(chan int, 300)
		for range cap(slow) { // all of one address
			c := ln.Dial(t, "10.0.0.1")
			c.Send(head + edgetest.Chunk("{"))
			go func() { r, _ := c.Next(); slow <- r.Status }()
		}
		synctest.Wait()
		require.Zero(t, admitted.Load(), "a body that does not come is not admitted")
		got := map[int]int{}
		for range cap(slow) {
			got[<-slow]++
		}
		require.Equal(t, map[int]int{503: 300 - 256, 400: 256}, got)
		require.Equal(t, 5*time.Second, time.Since(begin))

		for each, status := range map[int]int{64<<10 + 1: 413, 10 << 10: 400} { // all at once, and as many a second
			c := ln.Dial(t, "10.0.0.1")
			c.Send(signedHead(func(http.Header) {}) + "10001\r\n")
			begin = time.Now()
			go func() {
				for {
					if _, err := io.CopyN(c.Conn, edgetest.Zeros{}, int64(each)); err != nil || each > 64<<10 {
						return
					}
					faketime.Pass(time.Second)
				}
			}()
			require.Equal(t, status, c.Reply().Status)
			if status == 400 {
				require.Equal(t, 5*time.Second, time.Since(begin))
			}
			require.NoError(t, c.Close())
		}
		faketime.Pass(time.Minute) // until the senders have ended
	})
}

// counted counts the requests that run.
type counted struct{ n *atomic.Int64 }

func (c counted) Do(ctx context.Context, _ store.Work, fn func(context.Context) error) error {
	c.n.Add(1)
	defer c.n.Add(-1)
	return fn(ctx)
}

func signed(c *takthttp.Config) { c.HubSpotSecret, c.PublicURL = clientSecret, "http://takt" }

// accepting is a throttle that accepts every action.
type accepting struct{ takthttp.Throttle }

func (accepting) Accept(context.Context, store.Action) (store.Acceptance, error) {
	return store.Acceptance{State: store.ActionWaiting}, nil
}

// slowInstaller waits for HubSpot.
type slowInstaller struct {
	installer
	answer chan struct{}
}

func (i slowInstaller) Install(context.Context, string, string, string) (int64, error) {
	<-i.answer
	return 62515, nil
}

// An installation waits for HubSpot without a place, a few of an address; HubSpot itself has no such
// share once it has signed.
func TestInstallationsWaitForHubSpotWithoutAPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var admitted atomic.Int64
		slow := slowInstaller{answer: make(chan struct{})}
		ln, s := setupFakeTime(t, func(d *takthttp.Deps) { d.Requests, d.OAuth, d.Throttle = counted{&admitted}, slow, accepting{} }, signed)
		const install = "GET /api/oauth/callback?state=s&code=c"
		hook := func(callback string) int { // signed with another one
			body := `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":1},"context":{"workflowId":1}}`
			h := http.Header{}
			hubspottest.Sign(h, clientSecret, "POST", "http://takt/api/hubspot/action", []byte(body), time.Now())
			var text strings.Builder
			_ = h.Write(&text)
			head := edgetest.Request("POST /api/hubspot/action", strings.TrimSpace(text.String()), "Content-Length: "+strconv.Itoa(len(body)))
			return ln.Dial(t, "10.0.0.1").Ask(head + strings.Replace(body, `"c"`, callback, 1)).Status
		}
		for _, from := range []string{"10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2"} {
			ln.Dial(t, from).Send(edgetest.Request(install))
		}
		synctest.Wait()
		require.Zero(t, admitted.Load())
		require.Equal(t, 5, s.Running())
		require.Equal(t, 503, ln.Dial(t, "10.0.0.1").Ask(edgetest.Request(install)).Status)
		require.Equal(t, 401, hook(`"d"`))
		require.Equal(t, 503, ln.Dial(t, "10.0.0.1").Ask(edgetest.Request(install)).Status, "a wrong signature is none")
		require.Equal(t, 204, hook(`"c"`))
		ln.Dial(t, "10.0.0.1").Send(edgetest.Request(install))
		synctest.Wait()
		require.Equal(t, 6, s.Running())
		close(slow.answer)
		synctest.Wait()
		require.Zero(t, s.Running())
	})
}

// stuckQueue and stuckDeployments wait until they are released.
type stuckQueue struct {
	takthttp.Queue
	release <-chan struct{}
}

func (s stuckQueue) Arrive(context.Context, store.PollRequest, time.Duration) (store.AwaitReply, error) {
	<-s.release
	return nil, io.EOF
}

type stuckDeployments struct {
	takthttp.DeploymentStore
	release <-chan struct{}
}

func (s stuckDeployments) Find(context.Context, string) (store.Deployment, error) {
	<-s.release
	return store.Deployment{}, io.EOF
}

// ending runs requests that are told to end at once.
type ending struct{}

func (ending) Do(ctx context.Context, w store.Work, fn func(context.Context) error) error {
	w.OnStop()
	return fn(ctx)
}

func TestPollOrStreamThatIsStuckBeforeItWaitsLosesItsConnection(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/workers/poll?wait=60&worker_id=w", "/api/builds/b/logs", "/api/deployments/d/events"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				ln, s := setupFakeTime(t, func(d *takthttp.Deps) {
					find := finder{find: func(context.Context) (store.Build, error) { <-release; return store.Build{}, io.EOF }}
					d.Requests, d.Queue, d.Builds, d.DeploymentStore = ending{}, stuckQueue{release: release}, find, stuckDeployments{release: release}
				})
				c := ln.Dial(t, "")
				c.Send(edgetest.Request("GET "+path, "X-API-Key: "+apiKey, "Accept: text/event-stream"))
				require.Equal(t, time.Second, c.Cut())
				close(release)
				synctest.Wait()
				require.Zero(t, s.Running())
			})
		})
	}
}

// A session counts as a credential where its page may be seen.
func TestOneAddressWithASessionMayHoldMoreConnections(t *testing.T) {
	t.Parallel()
	ln, _ := setupFakeTime(t, func(*takthttp.Deps) {}, func(c *takthttp.Config) { c.MaxConnections, c.MaxPerAddress = 100, 3 })
	own := session(t, ln, "10.0.0.9", apiKey)
	livez := edgetest.Request("GET /livez")
	var all []*edgetest.Conn
	open := func() *edgetest.Conn {
		all = append(all, ln.Dial(t, "10.0.0.1"))
		require.Equal(t, 200, all[len(all)-1].Ask(livez).Status)
		return all[len(all)-1]
	}
	for range 3 {
		open()
	}
	require.Equal(t, 403, open().Ask(own("GET /audit")).Status)
	all[0].Cut()
	newest := open()
	all[1].Cut() // a session that may not see the page was not accepted
	require.Equal(t, 200, newest.Ask(own("GET /tree")).Status)
	for range 10 {
		open()
	}
	for _, c := range all[2:] {
		require.Equal(t, 200, c.Ask(livez).Status)
	}
}
