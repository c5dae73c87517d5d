package http_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

// dial opens a connection on which a test writes what it wants.
func dial(t *testing.T, url string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	return c, bufio.NewReader(c)
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

func read(t *testing.T, r *bufio.Reader) reply {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	got, err := readReply(resp)
	require.NoError(t, err)
	return got
}

const submitHead = "POST /api/builds/submit HTTP/1.1\r\nHost: takt\r\nContent-Type: multipart/form-data; boundary=b\r\n"

func TestClientThatSendsAllBeforeItReadsSeesTheRefusal(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{})
	const size = 20 << 20
	for name, head := range map[string]string{
		"with a length": "Content-Length: " + strconv.Itoa(size) + "\r\n\r\n",
		"in chunks":     "Transfer-Encoding: chunked\r\n\r\n" + strconv.FormatInt(size, 16) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := dial(t, url)
			write(t, c, submitHead+head)
			_, err := io.CopyN(c, zeros{}, size)
			require.NoError(t, err, "all of it is taken")
			if name == "in chunks" {
				write(t, c, "\r\n0\r\n\r\n")
			}
			resp := read(t, r)
			require.Equal(t, 401, resp.status)
			require.True(t, resp.closes)
			require.Contains(t, resp.body, "Missing X-API-Key header")
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestClientThatWaitsForLeaveIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	const keyed = "X-API-Key: " + apiKey + "\r\n"
	for name, tt := range map[string]struct {
		queue  takthttp.Queue
		head   string
		status int
		text   string
	}{
		"without a key":    {open{}, "Content-Length: 524288000\r\n", 401, "Missing X-API-Key header"},
		"with too much":    {open{}, keyed + "Content-Length: 99524288000\r\n", 413, "Request body too large"},
		"for a full queue": {full{}, keyed + "Content-Length: 524288000\r\n", 503, "Build queue full, try again later"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := dial(t, served(t, takthttp.Deps{Queue: tt.queue, Files: spacious{}}))
			write(t, c, submitHead+tt.head+"Expect: 100-continue\r\n\r\n")
			resp := read(t, r) // nothing was sent, and no "100 Continue" comes first
			require.Equal(t, tt.status, resp.status)
			require.Contains(t, resp.body, `"error":"`+tt.text+`"`)
			require.Equal(t, tt.status == 503, resp.header.Get("Retry-After") != "")
			require.True(t, resp.closes)
			_, err := r.ReadByte()
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

// spacious is a disk that is not full.
type spacious struct{ takthttp.Files }

func (spacious) Room() error { return nil }

// open is a queue with room.
type open struct{ takthttp.Queue }

func (open) Full(context.Context) bool { return false }

// full is a queue without.
type full struct{ takthttp.Queue }

func (full) Full(context.Context) bool { return true }

func TestSmallRefusedBodyKeepsTheConnection(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{})
	c, r := dial(t, url)
	for range 2 {
		write(t, c, submitHead+"Content-Length: 4\r\n\r\nabcd")
		resp := read(t, r)
		require.Equal(t, 401, resp.status)
		require.False(t, resp.closes)
	}
}

// A body that is several times larger than its route accepts is taken, so that its sender
// receives the refusal instead of a reset.
func TestRefusedBodyMayBeLargerThanItsLimit(t *testing.T) {
	t.Parallel()
	c, r := dial(t, served(t, takthttp.Deps{}))
	write(t, c, "POST /api/workers/register HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\nContent-Length: 6291456\r\n\r\n")
	require.Equal(t, 413, read(t, r).status)
	_, err := io.CopyN(c, zeros{}, 6<<20)
	require.NoError(t, err)
	_, err = r.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

func TestRefusedBodyIsNotReadForEver(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{}, func(c *takthttp.Config) { c.DrainTimeout = 50 * time.Millisecond })
	c, r := dial(t, url)
	write(t, c, submitHead+"Content-Length: 100000000\r\n\r\n") // and then nothing
	resp := read(t, r)
	require.Equal(t, 401, resp.status)
	_, err := r.ReadByte()
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server ends the connection")
}

func TestRefusedBodyIsNotReadWithoutLimit(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{}, func(c *takthttp.Config) { c.MaxJSON = 1 << 20 })
	c, _ := dial(t, url)
	const size = 256 << 20 // much more than the limit and all buffers
	write(t, c, "POST /api/workers/register HTTP/1.1\r\nHost: takt\r\nTransfer-Encoding: chunked\r\n\r\n"+strconv.FormatInt(size, 16)+"\r\n")
	n, err := io.CopyN(c, zeros{}, size)
	require.Error(t, err, "the connection ends")
	require.Less(t, n, int64(size))
}

func TestBodyThatNeverComesIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{}, func(c *takthttp.Config) { c.ReadTimeout = 50 * time.Millisecond })
	for _, request := range []string{
		"GET /livez HTTP/1.1\r\nHost: takt\r\nContent-Length: 10\r\n\r\n",
		"GET /nothing HTTP/1.1\r\nHost: takt\r\nContent-Length: 10\r\n\r\n",
		"POST /api/builds/b/cancel HTTP/1.1\r\nHost: takt\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST /api/workers/poll HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + apiKey + "\r\nContent-Length: 10\r\n\r\n",
	} {
		c, r := dial(t, url)
		write(t, c, request)
		require.NotZero(t, read(t, r).status, request)
	}
}
