package http_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/storage"
	"takt/store"
	"takt/store/seal"
)

// pipes is a listener whose connections are in memory, so that their deadlines
// keep a bubble's time.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
	stop  func() // ends the server
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, os.ErrDeadlineExceeded
	}
}

func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// SetDeadline ends a running Accept, which is all that a server asks of it.
func (p *pipes) SetDeadline(time.Time) error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

// dial returns the client's end of a new connection.
func (p *pipes) dial() (net.Conn, *bufio.Reader) {
	client, server := net.Pipe()
	p.conns <- server
	return client, bufio.NewReader(client)
}

// dialFrom is dial from an address.
func (p *pipes) dialFrom(ip string) (net.Conn, *bufio.Reader) {
	client, server := net.Pipe()
	p.conns <- addressed{server, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
	return client, bufio.NewReader(client)
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (c addressed) RemoteAddr() net.Addr { return c.from }

// roomy is an instant store with a queue that is never full.
type roomy struct{ *instant }

func (roomy) Full(context.Context) bool { return false }
func (roomy) Enqueued(store.Build)      {}
func (roomy) Submit(ctx context.Context, s store.Submission, files ...store.Staged) (store.Build, error) {
	return store.Build{ID: s.ID, Platform: s.Platform, State: store.Pending, SubmittedAt: time.Now()}, commitAll(ctx, files)
}

// fakeTime serves in a bubble, with the settings that everybody has.
func fakeTime(t *testing.T) *pipes {
	t.Helper()
	return fakeTimeWith(t, func(*takthttp.Deps) {})
}

// fakeTimeWith is fakeTime with something else in the place of a dependency.
func fakeTimeWith(t *testing.T, replace func(*takthttp.Deps), change ...func(*takthttp.Config)) *pipes {
	t.Helper()
	local, err := storage.OpenLocal(t.TempDir(), seal.NewRing(seal.Key{}))
	require.NoError(t, err)
	files, err := storage.NewFiles(storage.ModeLocal, local, nil)
	require.NoError(t, err)
	i := roomy{&instant{}}
	deps := takthttp.Deps{Builds: i, Queue: i, Files: files}
	replace(&deps)
	s, _ := newServer(t, deps, change...)
	ctx, cancel := context.WithCancelCause(t.Context())
	p, ended := &pipes{conns: make(chan net.Conn), ended: make(chan struct{}), stop: func() { cancel(nil) }}, make(chan error, 1)
	go func() { ended <- s.Serve(ctx, p) }()
	t.Cleanup(func() {
		cancel(nil)
		require.NoError(t, <-ended)
		s.Wait()
		require.NoError(t, local.Close())
	})
	return p
}

// cutAfter waits for the server to end the connection and returns how long that
// took.
func cutAfter(t *testing.T, r io.Reader) time.Duration {
	t.Helper()
	begin := time.Now()
	_, err := io.Copy(io.Discard, r)
	require.NoError(t, err)
	return time.Since(begin)
}

func slowForm(t *testing.T, size int) (head, body, tail string) {
	t.Helper()
	kind, whole := form(source(strings.Repeat("s", size)), part{name: "platform", content: "ios"})
	head = "POST /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + apiKey + "\r\nContent-Type: " + kind + "\r\nTransfer-Encoding: chunked\r\n\r\n"
	return head, string(whole), "0\r\n\r\n"
}

// chunkOf is a piece of a body as it is sent.
func chunkOf(piece string) string {
	return strconv.FormatInt(int64(len(piece)), 16) + "\r\n" + piece + "\r\n"
}

func TestUploadThatTakesHoursIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTime(t)
		c, r := p.dial()
		defer c.Close()
		head, body, tail := slowForm(t, 90<<20)
		write(t, c, head)
		begin := time.Now()
		const size = 60 * 24 << 10 // every 59 seconds: few are slower
		for i := 0; i < len(body); i += size {
			piece := body[i:min(i+size, len(body))]
			write(t, c, chunkOf(piece))
			time.Sleep(59 * time.Second) //nolint:forbidigo // fake time
		}
		write(t, c, tail)
		got := read(t, r)
		require.Equal(t, 201, got.status, got.body)
		require.Greater(t, time.Since(begin), time.Hour)
	})
}

func TestUploadThatTricklesIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTime(t)
		head, body, _ := slowForm(t, 10<<20)
		for each, pause := range map[int]time.Duration{1: 10 * time.Second, 1 << 10: time.Second, 300 << 10: 45 * time.Second} {
			c, r := p.dial()
			write(t, c, head)
			begin := time.Now()
			var trickle sync.WaitGroup
			trickle.Go(func() { // for as long as somebody takes it
				defer c.Close()
				var err error
				for i := 0; err == nil && i+each < len(body) && time.Since(begin) < 5*time.Minute; i += each {
					_, err = io.WriteString(c, chunkOf(body[i:i+each]))
					time.Sleep(pause) //nolint:forbidigo // fake time
				}
			})
			got := read(t, r)
			require.Equal(t, 400, got.status, got.body)
			require.Contains(t, got.body, "Request body comes too slowly: at least 8192 bytes a second are needed")
			require.LessOrEqual(t, time.Since(begin), 91*time.Second, "%d bytes every %s", each, pause)
			_ = c.Close() // it may have closed itself
			trickle.Wait()
		}
	})
}

func TestUploadThatStandsStillIsCutAfterAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTime(t)
		c, r := p.dial()
		defer c.Close()
		defer time.AfterFunc(5*time.Minute, func() { _ = c.Close() }).Stop()
		head, body, _ := slowForm(t, 1000)
		write(t, c, head+chunkOf(body[:100]))
		begin := time.Now()
		got := read(t, r)
		require.Equal(t, 400, got.status, got.body)
		require.InDelta(t, time.Minute.Seconds(), time.Since(begin).Seconds(), 2)
		cutAfter(t, r)
	})
}

func TestSlowHeadersAreCutAfterTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTime(t)
		for _, sent := range []string{"", "GET /livez HTTP/1.1\r\nHost: takt\r\nX-Sl"} {
			c, r := p.dial()
			write(t, c, sent)
			require.Equal(t, 10*time.Second, cutAfter(t, r), "%q", sent)
			require.NoError(t, c.Close())
		}
	})
}

// As a browser does that has opened a connection in advance.
func TestOpenConnectionGetsALastAnswerWhenServeEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTime(t)
		fresh, answers := p.dial()
		defer fresh.Close()
		used, answersToUsed := p.dial()
		defer used.Close()
		const request = "GET /livez HTTP/1.1\r\nHost: takt\r\n\r\n"
		write(t, used, request)
		require.False(t, read(t, answersToUsed).closes)
		silent, end := p.dial()
		defer silent.Close()
		time.Sleep(9 * time.Second) //nolint:forbidigo // fake time
		p.stop()
		synctest.Wait()
		for conn, answers := range map[net.Conn]*bufio.Reader{fresh: answers, used: answersToUsed} {
			write(t, conn, request)
			got := read(t, answers)
			require.Equal(t, 200, got.status, got.body)
			require.True(t, got.closes)
		}
		require.Less(t, cutAfter(t, end), 3*time.Second)
	})
}

func TestHeadersThatTrickleAreCutAfterTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTime(t)
		c, _ := p.dial()
		defer c.Close()
		write(t, c, "GET /livez HTTP/1.1\r\nHost: takt\r\n")
		begin := time.Now()
		var err error
		for err == nil {
			time.Sleep(time.Second) //nolint:forbidigo // fake time
			_, err = io.WriteString(c, "X-Slow: 1\r\n")
		}
		require.ErrorIs(t, err, io.ErrClosedPipe)
		require.InDelta(t, 10, time.Since(begin).Seconds(), 1)
	})
}

func TestSmallBodyThatComesSlowlyIsCut(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		each  int // bytes a second
		after float64
	}{"stands still": {0, 5}, "trickles": {1, 5}, "takes too long in all": {9 << 10, 30}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := fakeTime(t)
				c, r := p.dial()
				write(t, c, "POST /api/workers/register HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\nContent-Length: 1000000\r\n\r\n")
				begin := time.Now()
				var trickle sync.WaitGroup
				defer func() { _ = c.Close(); trickle.Wait() }()
				trickle.Go(func() { // for as long as somebody takes it
					var err error
					for err == nil && time.Since(begin) < time.Minute {
						time.Sleep(time.Second) //nolint:forbidigo // fake time
						_, err = io.WriteString(c, strings.Repeat(" ", tt.each))
					}
				})
				got := read(t, r)
				require.Equal(t, 400, got.status)
				require.InDelta(t, tt.after, time.Since(begin).Seconds(), 2)
			})
		})
	}
}

func TestIdleConnectionIsClosedAfterTwoMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTime(t)
		c, r := p.dial()
		defer c.Close()
		write(t, c, "GET /livez HTTP/1.1\r\nHost: takt\r\n\r\n")
		require.Equal(t, 200, read(t, r).status)
		require.Equal(t, 2*time.Minute, cutAfter(t, r))
	})
}

func TestClientThatReadsNothingIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fakeTime(t)
		c, _ := p.dial()
		defer c.Close()
		write(t, c, "GET /livez HTTP/1.1\r\nHost: takt\r\n\r\n")
		time.Sleep(5*time.Second + 1) //nolint:forbidigo // fake time
		_, err := io.WriteString(c, "GET")
		require.ErrorIs(t, err, io.ErrClosedPipe)
	})
}
