package http_test

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/edge"
	"takt/http/tlstest"
)

// secured is a fixture that speaks TLS, with a client that trusts it. The client
// speaks HTTP/2 if two.
func secured(t *testing.T, two bool, change ...func(*takthttp.Config)) (b *fixture, ca *tlstest.Authority, dir string) {
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

// TestTLSServesABuildsWholeWay runs a build's whole way, as the fleet would.
func TestTLSServesABuildsWholeWay(t *testing.T) {
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
func (b *fixture) parked() bool { return b.queue.hasParked() > 0 }
