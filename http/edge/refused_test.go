package edge_test

import (
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/edge/edgetest"
)

const noKey, tooLarge = "Missing X-API-Key header", "Request body too large"

// A client that sends all before it reads sees why it was refused; the rest of its body is taken,
// but not without end.
func TestRefusedBodies(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		head    string // of a request; then size bytes follow
		size    int64
		refusal string
		taken   bool // all of the body is
	}{
		"an upload with a length":         {edgetest.Request("POST /file", "Content-Length: 20971520"), 20 << 20, noKey, true},
		"an upload in chunks":             {edgetest.Request("POST /file", "Transfer-Encoding: chunked") + "1400000\r\n", 20 << 20, noKey, true},
		"a body larger than may be":       {edgetest.Request("POST /json", keyed, "Content-Length: 6291456"), 6 << 20, tooLarge, true},
		"an upload that does not go on":   {edgetest.Request("POST /file", "Content-Length: 20971520"), 1, noKey, true},
		"a body without end":              {edgetest.Request("POST /json", "Transfer-Encoding: chunked") + "10000000\r\n", 256 << 20, "", false},
		"an upload that waits to be sent": {edgetest.Request("POST /file", "Content-Length: 524288000", "Expect: 100-continue"), 0, noKey, true},
		"one that would be too large":     {edgetest.Request("POST /file", keyed, "Content-Type: multipart/form-data; boundary=b", "Content-Length: 99524288000", "Expect: 100-continue"), 0, tooLarge, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := setup(t, onTCP, func(o *options) {
				if tt.size == 1 {
					o.cfg.DrainTimeout = 50 * time.Millisecond
				}
			}).dial("")
			c.Send(tt.head)
			n, err := io.CopyN(c.Conn, edgetest.Zeros{}, tt.size)
			require.Equal(t, tt.taken, err == nil, "%d: %v", n, err)
			if strings.Contains(name, "in chunks") {
				c.Send("\r\n0\r\n\r\n")
			}
			if tt.taken {
				got := c.Reply()
				require.Contains(t, got.Body, tt.refusal)
				require.True(t, got.Closes)
			}
			c.Cut()
		})
	}
	t.Run("a small one keeps the connection", func(t *testing.T) {
		t.Parallel()
		c := setup(t).dial("")
		for range 2 {
			got := c.Ask(edgetest.Request("POST /file", "Content-Length: 4") + "abcd")
			require.Equal(t, 401, got.Status)
			require.False(t, got.Closes)
		}
	})
	t.Run("one without end over HTTP/2 leaves the connection to others", func(t *testing.T) {
		t.Parallel()
		f := setup(t, onTLS(t), func(o *options) { o.cfg.APIKey = "another-" + apiKey })
		client := f.client()
		for range 3 {
			r, w := io.Pipe()
			go func() { _, _ = io.Copy(w, edgetest.Zeros{}) }()
			require.Equal(t, 403, f.send(client, "POST", "/file", r).Status)
			require.NoError(t, r.Close())
		}
		require.Equal(t, 200, f.send(client, "GET", "/livez", nil).Status)
	})
	for _, request := range []string{"GET /livez", "GET /nothing", "POST /build", "POST /json"} {
		t.Run("one that never comes with "+request, func(t *testing.T) {
			t.Parallel()
			f := setup(t, func(o *options) { o.cfg.ReadTimeout = 50 * time.Millisecond })
			require.NotZero(t, f.ask("", edgetest.Request(request, keyed, "Content-Length: 10")))
		})
	}
}

func TestHeadersAreChecked(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 40<<10)
	for name, request := range map[string]string{
		"a long path":              edgetest.Request("GET /" + long),
		"a long query":             edgetest.Request("GET /livez?" + long),
		"a long header":            edgetest.Request("GET /livez", "X-A: "+long),
		"many headers":             edgetest.Request("GET /livez", strings.Repeat("X-A: a\r\n", 6<<10)+"X-A: a"),
		"two lengths":              edgetest.Request("POST /json", "Content-Length: 1", "Content-Length: 2"),
		"a negative length":        edgetest.Request("POST /json", "Content-Length: -1"),
		"an unknown encoding":      edgetest.Request("POST /json", "Transfer-Encoding: gzip"),
		"no host":                  "GET /livez HTTP/1.1\r\n\r\n",
		"two hosts":                edgetest.Request("GET /livez", "Host: b"),
		"a space in a name":        edgetest.Request("GET /livez", "X-API-Key : a"),
		"NUL in a value":           edgetest.Request("GET /livez", "X-A: a\x00b"),
		"a bare CR in a value":     edgetest.Request("GET /livez", "X-A: a\rb"),
		"another protocol's hello": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := setup(t, onTCP).dial("")
			go func() {
				_, _ = io.WriteString(c.Conn, request)
				_ = c.Conn.(*net.TCPConn).CloseWrite() // it dialled TCP
			}()
			got := c.Reply()
			require.Contains(t, []int{400, 431, 501}, got.Status)
			require.Equal(t, strings.HasSuffix(name, "many headers") || strings.Contains(name, "long"), got.Status == 431, strconv.Itoa(got.Status))
			c.Cut()
		})
	}
	require.Equal(t, 200, setup(t).ask("", edgetest.Request("GET /livez?"+strings.Repeat("a", 24<<10))), "a poll may list many builds")
}
