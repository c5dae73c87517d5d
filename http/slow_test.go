package http_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

// requireCut waits for the end of a connection, which has to come from the other
// side: not from the deadline that dial has set.
func requireCut(t *testing.T, r io.Reader) {
	t.Helper()
	_, err := io.Copy(io.Discard, r)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server keeps the connection")
}

func TestHeadersHaveALimit(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{})
	for name, request := range map[string]string{
		"a long path":   "GET /" + strings.Repeat("a", 40<<10) + " HTTP/1.1\r\nHost: takt\r\n\r\n",
		"a long query":  "GET /livez?" + strings.Repeat("a", 40<<10) + " HTTP/1.1\r\nHost: takt\r\n\r\n",
		"a long header": "GET /livez HTTP/1.1\r\nHost: takt\r\nX-A: " + strings.Repeat("a", 40<<10) + "\r\n\r\n",
		"many headers":  "GET /livez HTTP/1.1\r\nHost: takt\r\n" + strings.Repeat("X-A: a\r\n", 6<<10) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := dial(t, url)
			go func() { _, _ = io.WriteString(c, request) }() // it may be cut off
			require.Equal(t, 431, read(t, r).status)
			requireCut(t, r)
		})
	}
	c, r := dial(t, url)
	write(t, c, "GET /livez?"+strings.Repeat("a", 24<<10)+" HTTP/1.1\r\nHost: takt\r\n\r\n")
	require.Equal(t, 200, read(t, r).status, "a poll may list many builds")
}

func TestMalformedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{})
	for name, request := range map[string]string{
		"two lengths":              "POST /api/workers/register HTTP/1.1\r\nHost: takt\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"a negative length":        "POST /api/workers/register HTTP/1.1\r\nHost: takt\r\nContent-Length: -1\r\n\r\n",
		"an unknown encoding":      "POST /api/workers/register HTTP/1.1\r\nHost: takt\r\nTransfer-Encoding: gzip\r\n\r\n",
		"no host":                  "GET /livez HTTP/1.1\r\n\r\n",
		"two hosts":                "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"a space in a name":        "GET /livez HTTP/1.1\r\nHost: takt\r\nX-API-Key : a\r\n\r\n",
		"NUL in a value":           "GET /livez HTTP/1.1\r\nHost: takt\r\nX-A: a\x00b\r\n\r\n",
		"a bare CR in a value":     "GET /livez HTTP/1.1\r\nHost: takt\r\nX-A: a\rb\r\n\r\n",
		"another protocol's hello": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := dial(t, url)
			write(t, c, request)
			if tcp, ok := c.(*net.TCPConn); ok {
				require.NoError(t, tcp.CloseWrite())
			}
			got := read(t, r)
			require.GreaterOrEqual(t, got.status, 400)
			require.Less(t, got.status, 502)
			require.NotEqual(t, 500, got.status)
			requireCut(t, r)
		})
	}
}

func TestConnectionsHaveALimit(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{Tree: bigTree(1)}, func(c *takthttp.Config) { c.MaxConnections = 2 })
	type held struct {
		net.Conn
		answers *bufio.Reader
	}
	hold := func(local, head string) held {
		c, r := dialFrom(t, local, url)
		write(t, c, head)
		require.Equal(t, 200, read(t, r).status)
		return held{c, r}
	}
	first, second := hold("127.0.0.1", livezHead), hold("127.0.0.1", livezHead)
	write(t, first, livezHead)
	require.Equal(t, 200, read(t, first.answers).status)
	third := hold("127.0.0.2", livezHead)
	requireCut(t, second)
	for _, c := range []held{first, third} { // it was idle for longer
		write(t, c, adminHead)
		require.Equal(t, 200, read(t, c.answers).status)
	}
	require.True(t, lives(t, url), "not even an operator has all")
	requireCut(t, first)
	for range 5 {
		require.True(t, lives(t, url))
	}
	write(t, third, adminHead)
	require.Equal(t, 200, read(t, third.answers).status, "who has shown a key stays in")
	for range 20 {
		require.Eventually(t, func() bool { return lives(t, url) }, waitFor, tick, "and it is given back each time")
	}
}

func TestBodiesHaveALimitOnEveryRouteThatReadsThem(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.MaxJSON = 1000 })
	s, w := b.assigned()
	big := `{"a":"` + strings.Repeat("x", 1000) + `"}`
	for route, header := range map[string]map[string]string{
		"POST /api/workers/register":                                key(),
		"POST /api/builds/" + s.ID + "/logs":                        key("X-Worker-Id", w.ID),
		"POST /api/builds/" + s.ID + "/heartbeat?worker_id=" + w.ID: key(),
		"PUT /admin/heartbeat":                                      {"X-Admin-Key": adminKey},
		"POST /admin/tree/takt/database/restart":                    {"X-Admin-Key": adminKey},
	} {
		method, path, _ := strings.Cut(route, " ")
		header["Content-Type"] = "application/json"
		require.Equal(t, 413, b.send(method, path, header, big).status, route)
		chunked := send(t, b.client, method, b.url+path, header, io.MultiReader(strings.NewReader(big)))
		require.Equal(t, 413, chunked.status, "%s, in chunks", route)
	}
	require.Equal(t, "assigned", b.status(s.ID).Status)
}
