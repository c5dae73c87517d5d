package http_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/hubspot"
	"takt/http/hubspottest"
	"takt/store"
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
	s, _ := newServer(t, takthttp.Deps{}, func(c *takthttp.Config) { c.HubSpotSecret = clientSecret })
	url, _ := serve(t, s, listen(t))
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
	})
}

func TestPublicRoutesHaveAShareOfAdmission(t *testing.T) {
	t.Parallel()
	do := &counted{hold: make(chan struct{})}
	s, _ := newServer(t, takthttp.Deps{Requests: do, OAuth: installer{}})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	const each = 128
	answers := make(chan reply, each)
	for range each {
		go func() {
			r, _ := try(t.Context(), c, "GET", url+"/api/oauth/callback?state=s", nil, nil)
			answers <- r
		}()
	}
	require.Eventually(t, func() bool { return do.admitted.Load() == each }, waitFor, tick)
	r := send(t, c, "GET", url+"/api/oauth/callback?state=s", nil, nil)
	require.Equal(t, 503, r.status)
	requireProblem(t, r, "Too many requests, try again later", "overloaded")
	require.NotEmpty(t, r.header.Get("Retry-After"))
	close(do.hold)
	for range each {
		require.Equal(t, 400, (<-answers).status)
	}
	require.Equal(t, 400, send(t, c, "GET", url+"/api/oauth/callback?state=s", nil, nil).status, "all are given back")
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
