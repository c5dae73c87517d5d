package http_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/edge"
	"takt/http/tlstest"
	"takt/store"
)

// secured is a bundle that speaks TLS, with a client that trusts it. The client
// speaks HTTP/2 if two.
func secured(t *testing.T, two bool, change ...func(*takthttp.Config)) (b *bundle, ca *tlstest.Authority, dir string) {
	t.Helper()
	ca, dir = tlstest.NewAuthority(t), t.TempDir()
	cert, key := ca.Issue(t, dir, 1)
	b = setupWith(t, func(d *takthttp.Deps) {
		var err error
		d.TLS, err = edge.OpenCertificate(cert, key, zerolog.Nop())
		require.NoError(t, err)
	}, change...)
	b.url = strings.Replace(b.url, "http://", "https://", 1)
	b.client = tlsClient(t, &tls.Config{RootCAs: ca.Pool()}, two)
	return b, ca, dir
}

func tlsClient(t *testing.T, cfg *tls.Config, two bool) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: two, ExpectContinueTimeout: 10 * time.Second}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// TestEverythingWorksUnderTLS runs a build's whole way, as the fleet would.
func TestEverythingWorksUnderTLS(t *testing.T) {
	t.Parallel()
	for name, two := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, _ := secured(t, two)
			resp, err := b.client.Get(b.url + "/livez")
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, two, resp.ProtoMajor == 2)
			require.NotEmpty(t, resp.Header.Get("Strict-Transport-Security"))

			worker := b.register("w")
			waiting := begin(t, b.client, "GET", b.url+"/api/workers/poll?wait=60", key("X-Worker-Token", worker.AccessToken), nil)
			require.Eventually(t, func() bool { return b.parked() }, waitFor, tick)
			big := strings.Repeat("source code ", 1<<18) // many frames, more than a window
			kind, body := form(source(big), part{name: "platform", content: "ios"})
			submitted := send(t, b.client, "POST", b.url+"/api/builds", key("Content-Type", kind), bytes.NewReader(body))
			require.Equal(t, 201, submitted.status, submitted.body)
			r := <-waiting
			require.Equal(t, 200, r.status, r.body)
			id := decode[struct{ Job struct{ ID string } }](t, r).Job.ID
			require.NotEmpty(t, id, "the parked poll gets the build")

			r = b.send("GET", "/api/builds/"+id+"/source", key("X-Worker-Id", worker.ID), "")
			require.Equal(t, 200, r.status)
			require.Equal(t, big, r.body)
			r = b.send("GET", "/api/builds/"+id+"/source", key("X-Worker-Id", worker.ID, "Range", "bytes=7-10"), "")
			require.Equal(t, 206, r.status)
			require.Equal(t, "code", r.body)
			require.Equal(t, 200, b.finish(id, worker.ID, big).status)
			require.Equal(t, big, b.send("GET", "/api/builds/"+id+"/download", key(), "").body)
		})
	}
}

// parked reports whether a poll waits.
func (b *bundle) parked() bool { return b.queue.hasParked() > 0 }

func TestRefusalOverHTTP2LeavesTheConnectionToOthers(t *testing.T) {
	t.Parallel()
	b, _, _ := secured(t, true)
	for range 3 {
		// The body never ends: only an answer ends the request.
		r, w := io.Pipe()
		go func() { _, _ = io.Copy(w, zeros{}) }()
		got := send(t, b.client, "POST", b.url+"/api/builds", map[string]string{"Content-Type": "multipart/form-data; boundary=b"}, r)
		require.Equal(t, 401, got.status)
		require.NoError(t, r.Close())
	}
	require.Equal(t, 200, b.send("GET", "/livez", nil, "").status)
}

func TestStalledUploadOverHTTP2IsGivenUp(t *testing.T) {
	t.Parallel()
	b, _, _ := secured(t, true, func(c *takthttp.Config) { c.StallTimeout = 50 * time.Millisecond })
	kind, whole := form(source(strings.Repeat("source ", 10)), part{name: "platform", content: "ios"})
	body, w := io.Pipe()
	answered := begin(t, b.client, "POST", b.url+"/api/builds", key("Content-Type", kind), body)
	_, err := w.Write(whole[:len(whole)/2])
	require.NoError(t, err)
	r := <-answered
	require.Equal(t, 400, r.status, r.body)
	require.NoError(t, w.Close())
	b.requireNothing()
}

func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	b, ca, _ := secured(t, false)
	try := func(version uint16) error {
		c := tlsClient(t, &tls.Config{RootCAs: ca.Pool(), MinVersion: version, MaxVersion: version}, false)
		resp, err := c.Get(b.url + "/livez")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	require.Error(t, try(tls.VersionTLS10))
	require.Error(t, try(tls.VersionTLS11))
	require.NoError(t, try(tls.VersionTLS12))
	require.NoError(t, try(tls.VersionTLS13))
	plain := send(t, newClient(t), "GET", strings.Replace(b.url, "https", "http", 1)+"/livez", nil, nil)
	require.Equal(t, 400, plain.status)
}

func TestNewCertificateIsServedWithoutARestart(t *testing.T) {
	t.Parallel()
	b, ca, dir := secured(t, false)
	serial := func() int64 {
		d := tls.Dialer{Config: &tls.Config{RootCAs: ca.Pool()}}
		c, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "https://"))
		require.NoError(t, err)
		defer c.Close()
		return c.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64() //nolint:forcetypeassert // a tls.Dialer makes no other
	}
	require.EqualValues(t, 1, serial())
	ca.Issue(t, dir, 2)
	require.Eventually(t, func() bool { return serial() == 2 }, waitFor, 100*time.Millisecond)
	require.Equal(t, 200, b.send("GET", "/livez", nil, "").status, "and who was connected stays so")
}

func TestServerEndsUnderTLSToo(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewAuthority(t)
	cert, file := ca.Issue(t, t.TempDir(), 1)
	pair, err := edge.OpenCertificate(cert, file, zerolog.Nop())
	require.NoError(t, err)
	q := parking{parked: make(chan struct{}, 1), ended: make(chan error, 1)}
	s, _ := newServer(t, takthttp.Deps{Queue: q, TLS: pair})
	ln := listen(t)
	for range 2 { // the listener is given back as it was
		url, stop := serve(t, s, ln)
		c := tlsClient(t, &tls.Config{RootCAs: ca.Pool()}, true)
		waiting := begin(t, c, "GET", strings.Replace(url, "http", "https", 1)+"/api/workers/poll?wait=60", key("X-Worker-Token", tokensOf(t).Issue(store.WorkerToken{Worker: 7})), nil)
		<-q.parked
		require.NoError(t, stop())
		require.Equal(t, 200, (<-waiting).status)
		require.ErrorContains(t, <-q.ended, "the server is closing")
	}
}
