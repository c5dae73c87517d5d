package http_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/edge"
	"takt/http/hubspottest"
	"takt/store"
	"takt/store/hubspot"
)

// counted counts the requests that are admitted, and holds them if it has what
// they wait for.
type counted struct {
	admitted atomic.Int64
	hold     chan struct{}
}

func (d *counted) Do(ctx context.Context, _ store.Work, fn func(context.Context) error) error {
	d.admitted.Add(1)
	defer d.admitted.Add(-1)
	if d.hold != nil {
		<-d.hold
	}
	return fn(ctx)
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
	url := served(t, takthttp.Deps{}, func(c *takthttp.Config) { c.HubSpotSecret = clientSecret })
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
			c, r := dial(t, url)
			write(t, c, signedHead(change)) // the body never comes
			got := read(t, r)
			require.Equal(t, 401, got.status)
			requireProblem(t, got, "Invalid signature", "unauthorized")
		})
	}
}

func TestBodiesOfWebhooksAreReadBeforeTheyAreAdmitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		do := &counted{}
		p := fakeTimeWith(t, func(d *takthttp.Deps) { d.Requests = do }, func(c *takthttp.Config) { c.HubSpotSecret = clientSecret })
		head := signedHead(func(http.Header) {})
		begin := time.Now()
		slow := make(chan int, 300)
		for range 300 { // all of one address
			c, r := p.dial()
			defer c.Close()
			write(t, c, head+chunkOf("{"))
			go func() {
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					slow <- 0
					return
				}
				_ = resp.Body.Close()
				slow <- resp.StatusCode
			}()
		}
		synctest.Wait()
		require.Zero(t, do.admitted.Load(), "a body that does not come is not admitted")
		got := map[int]int{}
		for range 300 {
			got[<-slow]++
		}
		require.Equal(t, map[int]int{503: 300 - 256, 400: 256}, got, "an address has a share")
		require.Equal(t, 5*time.Second, time.Since(begin))

		c, r := p.dial()
		defer c.Close()
		write(t, c, signedHead(func(http.Header) {})+"10001\r\n")
		_, err := io.CopyN(c, zeros{}, 64<<10+1)
		require.NoError(t, err)
		require.Equal(t, 413, read(t, r).status)

		c, r = p.dial()
		write(t, c, signedHead(func(http.Header) {})+"10000\r\n")
		begin = time.Now()
		var slowly sync.WaitGroup
		defer slowly.Wait()
		defer c.Close()
		slowly.Go(func() { // all of it would take 6 s
			for err := error(nil); err == nil && time.Since(begin) < 20*time.Second; _, err = io.CopyN(c, zeros{}, 12<<10) {
				time.Sleep(time.Second) //nolint:forbidigo // fake time
			}
		})
		require.Equal(t, 400, read(t, r).status)
		require.Equal(t, 5*time.Second, time.Since(begin))
	})
}

func TestPublicRoutesHaveAShareOfAdmission(t *testing.T) {
	t.Parallel()
	do := &counted{hold: make(chan struct{})}
	release := sync.OnceFunc(func() { close(do.hold) })
	url := served(t, takthttp.Deps{Requests: do, OAuth: installer{}})
	defer release()
	c := browserClient(t)
	const each = 128
	answers := make(chan reply, each)
	for range each {
		go func() {
			r, _ := try(t.Context(), c, "GET", url+"/api/oauth/authorize", nil, nil)
			answers <- r
		}()
	}
	require.Eventually(t, func() bool { return do.admitted.Load() == each }, waitFor, tick)
	soon, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	r, err := try(soon, c, "GET", url+"/api/oauth/authorize", nil, nil)
	require.NoError(t, err)
	require.Equal(t, 503, r.status)
	requireProblem(t, r, "Too many requests, try again later", "overloaded")
	require.NotEmpty(t, r.header.Get("Retry-After"))
	release()
	for range each {
		require.Equal(t, 302, (<-answers).status)
	}
	require.Equal(t, 302, send(t, c, "GET", url+"/api/oauth/authorize", nil, nil).status, "all are given back")
}

// slowInstaller waits for HubSpot.
type slowInstaller struct {
	installer
	begun, answer chan struct{}
}

func (i slowInstaller) Install(context.Context, string, string, string) (int64, error) {
	i.begun <- struct{}{}
	<-i.answer
	return 62515, nil
}

func TestInstallationsThatWaitForHubSpotHoldNoPlace(t *testing.T) {
	t.Parallel()
	do, slow := &counted{}, slowInstaller{begun: make(chan struct{}), answer: make(chan struct{})}
	url := served(t, takthttp.Deps{Requests: do, OAuth: slow})
	install := func(local string) *bufio.Reader {
		c, r := dialFrom(t, local, url)
		write(t, c, "GET /api/oauth/callback?state=s&code=c HTTP/1.1\r\nHost: takt\r\n\r\n")
		return r
	}
	var answers []*bufio.Reader
	for range 4 {
		answers = append(answers, install("127.0.0.1"))
		<-slow.begun
	}
	requireProblem(t, read(t, install("127.0.0.1")), "Too many requests, try again later", "overloaded")
	answers = append(answers, install("127.0.0.2"))
	<-slow.begun
	require.Zero(t, do.admitted.Load())
	close(slow.answer)
	for _, r := range answers {
		require.Equal(t, 200, read(t, r).status)
	}
}

func TestHTTP2ConnectionsHaveFewStreams(t *testing.T) {
	t.Parallel()
	b, ca, _ := secured(t, true)
	client := tlsClient(t, &tls.Config{RootCAs: ca.Pool()}, true)
	var dialled atomic.Int64
	tr := client.Transport.(*http.Transport)
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	require.Equal(t, 200, send(t, client, "GET", b.url+"/livez", nil, nil).status) // it learns the limit
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	polls := func(n int) {
		for range n {
			w := b.register("w")
			go func() {
				_, _ = try(ctx, client, "GET", b.url+"/api/workers/poll?wait=60", key("X-Worker-Token", w.AccessToken), nil)
			}()
		}
	}
	polls(32)
	require.Eventually(t, func() bool { return b.queue.hasParked() == 32 }, waitFor, tick)
	require.EqualValues(t, 1, dialled.Load())
	polls(1)
	require.Eventually(t, func() bool { return b.queue.hasParked() == 33 }, waitFor, tick)
	require.EqualValues(t, 2, dialled.Load(), "one connection has no more than 32")
}

// dialFrom is dial from another address of this machine.
func dialFrom(t *testing.T, local, url string) (net.Conn, *bufio.Reader) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	c, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(waitFor)))
	return c, bufio.NewReader(c)
}

func TestOneAddressDoesNotHoldAllConnections(t *testing.T) {
	t.Parallel()
	const blind = "takt_blind-0123456789"
	ring := &store.KeyRing{}
	ring.Set([]store.NamedKey{{Name: "blind", Digest: sha256.Sum256([]byte(blind)), Scopes: []store.Scope{store.ScopeSubmit}}})
	s, _ := newServer(t, takthttp.Deps{Tree: bigTree(1), Ready: func() bool { return false }, Ring: ring}, func(c *takthttp.Config) {
		c.MaxConnections, c.MaxPerAddress = 100, 3
	})
	address, _ := serve(t, s, listen(t))
	type held struct {
		net.Conn
		answers *bufio.Reader
	}
	of := map[string][]*held{} // by address, oldest first
	open := func(local string) *held {
		c, r := dialFrom(t, local, address)
		write(t, c, livezHead)
		require.Equal(t, 200, read(t, r).status)
		of[local] = append(of[local], &held{c, r})
		return of[local][len(of[local])-1]
	}
	requireLimit := func(local string, why ...any) *held { // the next takes the place of the slowest
		newest := open(local)
		requireCut(t, of[local][0].answers)
		of[local] = of[local][1:]
		require.Len(t, of[local], 3, why...)
		return newest
	}
	ask := func(c *held, path, header string) int {
		write(t, c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: none\r\n"+header+"\r\n\r\n")
		return read(t, c.answers).status
	}
	for range 3 {
		open("127.0.0.1")
	}
	open("127.0.0.2")
	newest := requireLimit("127.0.0.1")
	require.Equal(t, 200, ask(of["127.0.0.2"][0], "/livez", "X-A: b"), "others have room")
	require.Equal(t, 403, ask(newest, "/admin/tree", "X-Admin-Key: "+apiKey))
	newest = requireLimit("127.0.0.1", "a wrong key is none")
	for _, header := range []string{"X-API-Key: made-up-0123456789", "Cookie: __Host-takt=made-up.0123456789"} {
		for path, status := range map[string]int{"/login": 200, "/fleet": 303, "/livez": 200} {
			require.Equal(t, status, ask(newest, path, header))
			newest = requireLimit("127.0.0.1", "nobody compared %q of a request for %s", header, path)
		}
	}
	require.Equal(t, 403, ask(newest, "/api/builds", "X-API-Key: "+blind))
	newest = requireLimit("127.0.0.1", "a key without the scope was not accepted")
	require.Equal(t, 200, ask(newest, "/admin/tree", "X-Admin-Key: "+adminKey))
	for range 10 {
		open("127.0.0.1")
	}
	for _, c := range of["127.0.0.1"] {
		require.Equal(t, 200, ask(c, "/livez", "X-A: b"), "a fleet behind one address has shown its key")
	}

	for range 3 {
		open("127.0.0.3")
	}
	newest = requireLimit("127.0.0.3")
	form := url.Values{"key": {apiKey}, "name": {"tester"}}.Encode()
	write(t, newest, fmt.Sprintf("POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"+
		"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s", len(form), form))
	cookie, _, _ := strings.Cut(read(t, newest.answers).header.Get("Set-Cookie"), ";")
	require.Equal(t, 403, ask(newest, "/audit", "Cookie: "+cookie))
	newest = requireLimit("127.0.0.3", "a session that may not see the page was not accepted")
	require.Equal(t, 200, ask(newest, "/tree", "Cookie: "+cookie))
	for range 3 {
		open("127.0.0.3")
	}
	for _, c := range of["127.0.0.3"] {
		require.Equal(t, 200, ask(c, "/livez", "X-A: b"), "a session is as good as a key")
	}
}

// A key that its holder uses for all connections that it can get leaves some to everybody else.
func TestAKeyDoesNotHoldAllConnections(t *testing.T) {
	t.Parallel()
	c, _ := besiege(t, func(c *takthttp.Config) { c.MaxConnections = 64 })
	fleet, answers := dialFrom(t, "127.0.0.40", c.url)
	write(t, fleet, adminHead)
	require.Equal(t, 200, read(t, answers).status)
	hold := func(text string) {
		conn, r := dialFrom(t, "127.0.0.41", c.url)
		write(t, conn, text)
		require.Equal(t, 204, read(t, r).status)
	}
	for range 200 {
		hold(signedWebhook()) // a credential, too
	}
	for range 20 {
		c.requireServed()
		hold(signedWebhook())
	}
	write(t, fleet, adminHead)
	require.Equal(t, 200, read(t, answers).status, "a lighter credential keeps its connections")
}

func TestConnectionsThatAskNothingAreClosed(t *testing.T) {
	t.Parallel()
	b, ca, _ := secured(t, true, func(c *takthttp.Config) { c.ReadHeaderTimeout = 500 * time.Millisecond })
	c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool(), NextProtos: []string{"h2"}}}).
		DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "https://"))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(waitFor)))
	write(t, c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x00\x00\x00\x04\x00\x00\x00\x00\x00") // and its settings
	requireCut(t, c)
}

func TestWrongKeysAreCountedAndLogged(t *testing.T) {
	t.Parallel()
	p := newTreeWithOrders()
	s, l := newServer(t, takthttp.Deps{
		Tree: bigTree(1), Audit: p, Background: func(run func(context.Context)) { run(t.Context()) },
	}, func(c *takthttp.Config) { c.WrongKeys = 0 }) // what everybody has
	url, _ := serve(t, s, listen(t))
	show := func(local, header, key string) int {
		c, r := dialFrom(t, local, url)
		defer c.Close()
		write(t, c, "GET /admin/tree HTTP/1.1\r\nHost: takt\r\n"+header+": "+key+"\r\n\r\n")
		got := read(t, r)
		if got.status == 429 {
			requireProblem(t, got, "Too many wrong keys", "rate_limited")
			require.NotEmpty(t, got.header.Get("Retry-After"))
		}
		return got.status
	}
	for i := range 10 {
		require.Equal(t, 403, show("127.0.0.1", "X-Admin-Key", "wrong-key-0123456789"), "%d", i)
	}
	for range 3 {
		require.Equal(t, 429, show("127.0.0.1", "X-Admin-Key", "wrong-key-0123456789"))
		require.Equal(t, 200, show("127.0.0.1", "X-Admin-Key", adminKey), "a right key is never refused")
		require.Equal(t, 401, show("127.0.0.1", "X-API-Key", apiKey), "none is not a wrong one")
	}
	require.Equal(t, 403, show("127.0.0.2", "X-Admin-Key", "wrong-key-0123456789"), "others are not slowed")
	require.Equal(t, 2, strings.Count(l.String(), `"level":"warn"`), "once for each address")
	require.Contains(t, l.String(), `"remote":"127.0.0.1"`)
	require.Len(t, p.entries, 2, "once for each address, not for each key")
	require.Equal(t, []string{"unknown@127.0.0.1", "show wrong key", "Invalid admin key"},
		[]string{p.entries[0].Actor, p.entries[0].Action, p.entries[0].Outcome})
	require.NotContains(t, l.String(), "wrong-key")
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.Metrics())
	families, err := registry.Gather()
	require.NoError(t, err)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "takt_http_wrong_keys_total" })
	require.GreaterOrEqual(t, i, 0)
	require.InDelta(t, 14, families[i].GetMetric()[0].GetCounter().GetValue(), 0)
}

func TestAKeyIsNotGuessedBesideABuildToken(t *testing.T) {
	t.Parallel()
	b := setupWith(t, func(*takthttp.Deps) {}, func(c *takthttp.Config) { c.WrongKeys = 0 })
	s := b.submit()
	guess := func(token string) int {
		return b.send("GET", "/api/builds/"+s.ID+"/status", map[string]string{"X-API-Key": "wrong-key-0123456789", "X-Build-Token": token}, "").status
	}
	for range 10 {
		require.Equal(t, 403, guess("x"))
	}
	require.Equal(t, 200, guess(s.AccessToken), "its token opens the build")
	require.Equal(t, 429, b.send("GET", "/api/builds", map[string]string{"X-API-Key": "wrong-key-0123456789"}, "").status, "they were counted")
}

// An address that guesses waits for each answer and loses its connection; no other request
// waits, nor does a right key of that address.
func TestGuessingIsSlowAndARightKeyIsNot(t *testing.T) {
	t.Parallel()
	for name, guess := range map[string]string{
		"API key":                      "GET /api/workers HTTP/1.1\r\nHost: takt\r\nX-API-Key: wrong\r\n\r\n",
		"admin key":                    "GET /admin/tree HTTP/1.1\r\nHost: takt\r\nX-Admin-Key: wrong\r\n\r\n",
		"admin key beside the API key": "POST /api/deployments HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + apiKey + "\r\nX-Admin-Key: wrong\r\nContent-Length: 35\r\nContent-Type: application/json\r\n\r\n" + `{"source_org":"a","target_org":"b"}`,
		"login":                        "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 16\r\n\r\nkey=wrong&name=x",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := fakeTimeWith(t, func(d *takthttp.Deps) { d.Tree = bigTree(1) }, func(c *takthttp.Config) { c.WrongKeys = 0 }) // what everybody has
				show := func(text string) (reply, bool) {
					c, r := p.dial()
					defer c.Close()
					write(t, c, text)
					resp, err := http.ReadResponse(r, nil)
					if err != nil {
						return reply{}, false
					}
					got, err := readReply(resp)
					require.NoError(t, err)
					return got, true
				}
				begin := time.Now()
				for i := range 100 {
					got, ok := show(guess)
					require.True(t, ok)
					require.False(t, got.closes, "%d: %s", i, got.body)
				}
				require.Zero(t, time.Since(begin))
				got, ok := show(guess)
				require.True(t, ok)
				require.True(t, got.closes, "further guesses do not wait on the connection")
				require.Equal(t, time.Second, time.Since(begin))

				answered := make(chan bool, 20)
				for range 20 {
					go func() {
						_, ok := show(guess)
						answered <- ok
					}()
				}
				synctest.Wait()
				require.Len(t, answered, 4, "so many wait, others are cut off")
				for range 4 {
					require.False(t, <-answered)
				}
				begin = time.Now()
				got, _ = show("GET /admin/tree HTTP/1.1\r\nHost: takt\r\nX-Admin-Key: " + adminKey + "\r\n\r\n")
				require.Equal(t, 200, got.status)
				got, _ = show("GET /admin/tree HTTP/1.1\r\nHost: takt\r\n\r\n")
				require.Equal(t, 401, got.status, "none is not a wrong one")
				require.Zero(t, time.Since(begin))
				for range 16 {
					require.True(t, <-answered)
				}
				require.Equal(t, time.Second, time.Since(begin))
			})
		})
	}
}

func TestWrongKeysAreForgottenAfterAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTimeWith(t, func(*takthttp.Deps) {}, func(c *takthttp.Config) { c.WrongKeys = 2 })
		show := func() int {
			c, r := p.dial()
			defer c.Close()
			write(t, c, "GET /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: wrong\r\n\r\n")
			return read(t, r).status
		}
		for range 3 {
			require.Equal(t, []int{403, 403, 429, 429}, []int{show(), show(), show(), show()})
			time.Sleep(time.Minute) //nolint:forbidigo // fake time
		}
	})
}

func TestKeysOfFewCharactersAreRefused(t *testing.T) {
	t.Parallel()
	for key, ok := range map[string]bool{
		strings.Repeat("a", 32): false, strings.Repeat("abcdefg", 5): false, "0123456701234567": true, apiKey: true,
	} {
		for _, cfg := range []edge.Config{{APIKey: key}, {APIKey: "another-" + apiKey, AdminKey: key}} {
			_, err := takthttp.New(takthttp.Deps{}, takthttp.Config{Config: cfg})
			if ok {
				require.NoError(t, err, key)
			} else {
				require.ErrorContains(t, err, "needs at least 8 different characters")
				require.NotContains(t, err.Error(), key)
			}
		}
	}
}
