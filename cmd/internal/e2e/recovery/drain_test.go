package recovery

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/client"
)

// bigSource is larger than what the buffers of a connection hold.
const bigSource = 64 << 20

// beginDownload asks for a build's source over a connection of its own and reads only the
// header of the reply.
func beginDownload(t *testing.T, c *process.Controller, id string) io.Reader {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.Address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*takttest.Patience)))
	_, err = fmt.Fprintf(conn, "GET /api/builds/%s/download/source HTTP/1.1\r\nHost: takt\r\nX-API-Key: %s\r\n\r\n", id, c.APIKey)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.EqualValues(t, bigSource, resp.ContentLength)
	t.Cleanup(func() { require.NoError(t, resp.Body.Close()) })
	return resp.Body
}

func requireWholeSource(t *testing.T, download io.Reader) {
	t.Helper()
	n, err := io.Copy(io.Discard, download)
	require.NoError(t, err)
	require.EqualValues(t, bigSource, n)
}

// restartNow has a part of the tree restarted and returns how long it took until requests
// were answered again.
func restartNow(t *testing.T, c *process.Controller, path string) time.Duration {
	t.Helper()
	begin := time.Now()
	takttest.Order(t, c, client.Order{Action: "restart", Path: path, Reason: "test", Timeout: 50 * time.Second})
	require.Equal(t, "done", *concluded(t, c, path).Outcome)
	_, err := c.Client.List(t.Context(), client.Filter{})
	require.NoError(t, err)
	t.Logf("%s took %s", path, time.Since(begin).Round(time.Millisecond))
	return time.Since(begin)
}

func TestRestartsDuringASlowDownload(t *testing.T) {
	t.Parallel()
	c := takttest.NewEnv(t).StartController("takt")
	id := takttest.Submit(t, c, make([]byte, bigSource))

	survivor := beginDownload(t, c, id)
	require.Less(t, restartNow(t, c, "takt/endpoint"), 15*time.Second, "the download keeps nobody waiting")
	requireWholeSource(t, survivor)

	for _, path := range []string{"takt/request_sup", "takt"} {
		cut := beginDownload(t, c, id)
		require.Less(t, restartNow(t, c, path), 15*time.Second, "the download delays %s by about a second", path)
		n, err := io.Copy(io.Discard, cut)
		require.Error(t, err, "a cut download does not look whole")
		require.Less(t, n, int64(bigSource))
		takttest.RequireWell(t, c, "a cut request is not leaked, and an ordered restart is not counted")
	}
}

func TestStoppingControllerAnswersProbesUntilItsEnd(t *testing.T) {
	t.Parallel()
	c := takttest.NewEnv(t).StartController("takt")
	download := beginDownload(t, c, takttest.Submit(t, c, make([]byte, bigSource)))

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	prober := &http.Client{Transport: transport, Timeout: 4 * time.Second}
	get := func(path string) (status int, closes bool) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+path, nil)
		require.NoError(t, err)
		req.Header.Set("X-API-Key", c.APIKey)
		resp, err := prober.Do(req)
		require.NoError(t, err, path)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode, resp.Close
	}
	require.NoError(t, c.Signal(syscall.SIGTERM))
	takttest.Eventually(t, "it is no longer ready", func() bool {
		status, _ := get("/readyz")
		return status == 503
	})
	for path, status := range map[string]int{"/livez": 200, "/readyz": 503, "/api/builds": 503, "/health": 503} {
		got, closes := get(path)
		require.Equal(t, status, got, path)
		require.True(t, closes, path)
	}
	var out bytes.Buffer
	require.Equal(t, cli.ExitUnavailable, cli.Execute(t.Context(), command.New(takttest.Environment("TAKT_URL", c.URL)), []string{"ready"}, &out, &out))
	require.True(t, c.Alive())

	// The database keeps the tree from ending, long after the endpoint.
	server := postmaster(t, c)
	require.NoError(t, syscall.Kill(server, syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { _ = syscall.Kill(server, syscall.SIGCONT) })
	defer resume()
	requireWholeSource(t, download)
	for begin := time.Now(); time.Since(begin) < 6*time.Second; {
		status, _ := get("/livez")
		require.Equal(t, 200, status)
	}
	require.True(t, c.Alive())
	resume()
	<-c.Done()
	require.NoError(t, c.Failure())
}

// A stop that comes while takt starts is a stop like any other.
func TestStoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	p, err := env.Launch("takt", []string{"TAKT_DATA_DIR=" + t.TempDir(), "TAKT_LISTEN=127.0.0.1:0"}, "serve")
	require.NoError(t, err)
	takttest.Eventually(t, "it has begun", func() bool { return strings.Contains(p.Output(), "made a random key") })
	require.NoError(t, p.Signal(syscall.SIGTERM))
	<-p.Done()
	require.Zero(t, p.ExitCode(), p.Output())
}
