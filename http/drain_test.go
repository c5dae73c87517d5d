package http_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
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

// slowResult is a build whose result is long enough to fill the buffers of a connection.
func slowResult() *result {
	return &result{read: func(p []byte, _ int64) (int, error) { return len(p), nil }}
}

// startDownload asks for the result of a build and reads nothing but the header.
func startDownload(t *testing.T, url string) io.Reader {
	t.Helper()
	c, r := dial(t, url)
	write(t, c, "GET /api/builds/b/download HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\n\r\n")
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, resp.Body.Close()) })
	require.Equal(t, 200, resp.StatusCode)
	return resp.Body
}

func requireWhole(t *testing.T, download io.Reader) {
	t.Helper()
	n, err := io.Copy(io.Discard, download)
	require.NoError(t, err)
	require.EqualValues(t, resultSize, n)
}

// lives reports whether a new connection gets an answer.
func lives(t *testing.T, url string) bool {
	t.Helper()
	c, r := dial(t, url)
	defer c.Close()
	_, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: takt\r\n\r\n")
	if err == nil {
		_, err = r.ReadByte()
	}
	return err == nil
}

func TestServeLeavesItsRequestsAndItsListenerToTheNext(t *testing.T) {
	t.Parallel()
	r := slowResult()
	s, _ := newServer(t, takthttp.Deps{Builds: r, Files: r}, func(c *takthttp.Config) { c.MaxConnections = 2 })
	ln := listen(t)
	url := "http://" + ln.Addr().String()
	begin := func() (end func() error) {
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, ln) }()
		return func() error {
			cancel(nil)
			return <-ended
		}
	}
	end := begin()
	download := startDownload(t, url)
	require.NoError(t, end(), "it does not wait for the download")

	serve(t, s, ln)
	held, answers := dial(t, url)
	write(t, held, "GET /livez HTTP/1.1\r\nHost: takt\r\n\r\n")
	require.Equal(t, 200, read(t, answers).status)
	require.True(t, lives(t, url))
	requireCut(t, answers) // connections of the server before are counted
	requireWhole(t, download)
	require.Eventually(t, func() bool { return lives(t, url) }, waitFor, tick)
}

func TestServeTakesTurns(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	ln := listen(t)
	first, end := context.WithCancelCause(t.Context())
	ended := make(chan error, 3)
	go func() { ended <- s.Serve(first, ln) }()
	require.Eventually(t, func() bool { return lives(t, "http://"+ln.Addr().String()) }, waitFor, tick)
	url, _ := serve(t, s, ln)
	never, give := context.WithCancelCause(t.Context())
	go func() { ended <- s.Serve(never, ln) }()
	give(errors.New("nobody serves"))
	require.NoError(t, <-ended, "it need not wait for its turn")
	for range 3 {
		require.True(t, lives(t, url))
	}
	end(nil)
	require.NoError(t, <-ended)
	for range 3 {
		require.True(t, lives(t, url), "the next one accepts")
	}
}

func TestDrainingServerAnswersProbesAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	r := slowResult()
	q := parking{parked: make(chan struct{}, 1), ended: make(chan error, 1)}
	s, _ := newServer(t, takthttp.Deps{Builds: r, Files: r, Queue: q})
	ln := listen(t)
	url, stop := serve(t, s, ln)
	c := newClient(t)
	worker := key("X-Worker-Token", tokensOf(t).Issue(store.WorkerToken{Worker: 7}))
	poll := begin(t, c, "GET", url+"/api/workers/poll?wait=60", worker, nil)
	<-q.parked
	kept, answers := dial(t, url)
	write(t, kept, "GET /livez HTTP/1.1\r\nHost: takt\r\n\r\n")
	require.False(t, read(t, answers).closes)
	download := startDownload(t, url)

	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.Drain(context.WithoutCancel(t.Context()))
	}()
	r1 := <-poll
	require.Equal(t, 200, r1.status, "a parked poll is answered")
	requireDraining := func() {
		require.Equal(t, 200, send(t, c, "GET", url+"/livez", nil, nil).status)
		for request, header := range map[string]map[string]string{
			"GET /readyz": nil, "GET /healthz": nil, "GET /health": nil, "GET /api/builds": key(), "GET /": nil,
			"GET /api/workers/poll?wait=60": worker, "POST /api/builds": key(), "GET /admin/tree": {"X-Admin-Key": adminKey},
		} {
			method, path, _ := strings.Cut(request, " ")
			got := send(t, c, method, url+path, header, nil)
			require.Equal(t, 503, got.status, request)
			require.True(t, got.closes, request)
			require.NotEmpty(t, got.header.Get("Retry-After"), request)
			requireProblem(t, got, "The controller is shutting down", "unavailable")
		}
	}
	requireDraining()
	write(t, kept, "GET /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\n\r\n")
	got := read(t, answers)
	require.Equal(t, 503, got.status, "on an old connection too")
	require.True(t, got.closes)
	select {
	case <-drained:
		t.Fatal("the download runs")
	default:
	}
	requireWhole(t, download)
	<-drained
	requireDraining()
	require.NoError(t, stop())
	serve(t, s, ln)
	requireDraining()
}

func TestDrainWaitsNoLongerThanItsLimit(t *testing.T) {
	t.Parallel()
	r := slowResult()
	s, l := newServer(t, takthttp.Deps{Builds: r, Files: r}, func(c *takthttp.Config) { c.ShutdownTimeout, c.RequestGrace = 50*time.Millisecond, 50*time.Millisecond })
	url, stop := serve(t, s, listen(t))
	download := startDownload(t, url)
	s.Drain(t.Context())
	require.NoError(t, stop())
	n, err := io.Copy(io.Discard, download)
	require.Error(t, err, "a cut download does not look whole")
	require.Less(t, n, int64(resultSize))
	require.Contains(t, l.String(), "requests did not end in time and were cut off")
}

func TestDrainingServerSendsHTTP2ClientsAway(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewAuthority(t)
	cert, key := ca.Issue(t, t.TempDir(), 1)
	pair, err := edge.OpenCertificate(cert, key, zerolog.Nop())
	require.NoError(t, err)
	s, _ := newServer(t, takthttp.Deps{TLS: pair})
	url, _ := serve(t, s, listen(t))
	url = strings.Replace(url, "http://", "https://", 1)
	var dialled int
	client := tlsClient(t, &tls.Config{RootCAs: ca.Pool()}, true)
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled++
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	for range 3 {
		require.Equal(t, 200, send(t, client, "GET", url+"/livez", nil, nil).status)
	}
	require.Equal(t, 1, dialled)
	s.Drain(t.Context())
	for range 3 {
		require.Equal(t, 503, send(t, client, "GET", url+"/readyz", nil, nil).status)
	}
	require.Greater(t, dialled, 1, "GOAWAY")
}
