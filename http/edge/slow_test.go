package edge_test

import (
	"context"
	"crypto/tls"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"

	"takt/http/edge"
	"takt/http/edge/edgetest"
	"takt/store/storetest/faketime"
)

var livez = edgetest.Request("GET /livez")

func TestConnectionsOfSlowClientsAreClosed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		send  func(c *edgetest.Conn)
		after time.Duration
	}{
		"one that sends nothing":           {func(*edgetest.Conn) {}, 10 * time.Second},
		"one that sends half a header":     {func(c *edgetest.Conn) { c.Send("GET /livez HTTP/1.1\r\nHost: takt\r\nX-Sl") }, 10 * time.Second},
		"one without a further request":    {func(c *edgetest.Conn) { require.Equal(t, 200, c.Ask(livez).Status) }, 2 * time.Minute},
		"one whose header comes in pieces": {func(c *edgetest.Conn) { go trickle(c, "X-Slow: 1\r\n", time.Second, 60) }, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := setup(t).dial("")
				if strings.Contains(name, "pieces") {
					c.Send("GET /livez HTTP/1.1\r\nHost: takt\r\n")
				}
				tt.send(c)
				require.Equal(t, tt.after, c.Cut())
				faketime.Pass(time.Minute) // until the client has noticed
			})
		})
	}
	t.Run("one of HTTP/2 that asks nothing", func(t *testing.T) {
		t.Parallel()
		secure := onTLS(t)
		synctest.Test(t, func(t *testing.T) {
			f := setup(t, secure)
			c := f.dial("").TLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			c.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00") // and its settings
			require.Equal(t, 10*time.Second, c.Cut())
		})
	})
	t.Run("one that does not read", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := setup(t).dial("")
			c.Send(livez)
			faketime.Pass(5*time.Second + 1)
			_, err := io.WriteString(c.Conn, "GET")
			require.ErrorIs(t, err, io.ErrClosedPipe)
		})
	})
}

// trickle sends a text some times, as long as it is taken.
func trickle(c *edgetest.Conn, text string, pause time.Duration, times int) {
	for range times {
		if _, err := io.WriteString(c.Conn, text); err != nil {
			return
		}
		faketime.Pass(pause)
	}
}

const partHead = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n"

// chunked is the head of a request with the API key whose body, a form, comes in chunks.
func chunked(line string) string {
	return edgetest.Request(line, keyed, "Content-Type: multipart/form-data; boundary=b", "Transfer-Encoding: chunked") + edgetest.Chunk(partHead)
}

func TestBodiesThatComeSlowlyAreRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		line         string
		each, times  int
		pause, after time.Duration // after: of the reply
		status       int
	}{
		"an upload that takes an hour":      {"POST /file", 60 * 24 << 10, 64, 59 * time.Second, 64 * 59 * time.Second, 200},
		"an upload byte by byte":            {"POST /file", 1, 60, 10 * time.Second, 30 * time.Second, 400},
		"an upload of 1 KiB/s":              {"POST /file", 1 << 10, 300, time.Second, 30 * time.Second, 400},
		"an upload with long pauses":        {"POST /file", 300 << 10, 10, 45 * time.Second, 90 * time.Second, 400},
		"an upload that stands still":       {"POST /file", 1, 1, time.Hour, time.Minute, 400},
		"JSON that stands still":            {"POST /json", 1, 1, time.Hour, 5 * time.Second, 400},
		"JSON byte by byte":                 {"POST /json", 1, 60, time.Second, 5 * time.Second, 400},
		"JSON that takes too long in all":   {"POST /json", 9 << 10, 60, time.Second, 30 * time.Second, 400},
		"JSON that takes almost that long":  {"POST /json", 9 << 10, 29, time.Second, 29 * time.Second, 200},
		"JSON of who may have a token only": {"POST /build", 1, 60, time.Second, 5 * time.Second, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := setup(t).dial("")
				c.Send(chunked(tt.line))
				begin := time.Now()
				go func() {
					trickle(c, edgetest.Chunk(strings.Repeat("s", tt.each)), tt.pause, tt.times)
					_, _ = io.WriteString(c.Conn, edgetest.Chunk("\r\n--b--\r\n")+"0\r\n\r\n")
				}()
				got := c.Reply()
				require.Equal(t, tt.status, got.Status, got.Body)
				require.InDelta(t, tt.after.Seconds(), time.Since(begin).Seconds(), 1)
				if strings.Contains(name, "KiB") {
					require.Contains(t, got.Body, "Request body comes too slowly: at least 8192 bytes a second are needed")
				}
				_ = c.Close()
				faketime.Pass(2 * time.Hour) // until the client has noticed
			})
		})
	}
}

func TestBodiesOverHTTP2ThatStandStillAreRefused(t *testing.T) {
	t.Parallel()
	secure := onTLS(t)
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, secure)
		r, w := io.Pipe()
		go func() { _, _ = io.WriteString(w, partHead) }()
		begin := time.Now()
		require.Equal(t, 400, f.send(f.client(), "POST", "/file", r).Status)
		require.InDelta(t, time.Minute.Seconds(), time.Since(begin).Seconds(), 1)
		_ = r.Close()
	})
}

func TestRepliesThatAreReadSlowlyAreCut(t *testing.T) {
	t.Parallel()
	admin := edgetest.Request("GET /admin", "X-Admin-Key: "+adminKey)
	for name, tt := range map[string]struct {
		request string
		each    int64
		pause   time.Duration
		whole   bool
	}{
		"a file at 5 kB/s":                {edgetest.Request("GET /file", keyed), 5000, time.Second, false},
		"a file at 16 kB/s":               {edgetest.Request("GET /file", keyed), 16000, time.Second, true},
		"a file that is not read":         {edgetest.Request("GET /file", keyed), 1, time.Hour, false},
		"a long reply, a piece every 2 s": {admin, 32 << 10, 2 * time.Second, true},
		"a long reply, a piece every 6 s": {admin, 64 << 10, 6 * time.Second, false},
		"a stream that is not read":       {edgetest.Request("GET /stream", keyed), 1, 11 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const size = 1 << 20
				f := setup(t, func(o *options) {
					o.file.size, o.do = size, sized(size)
					o.run = func(_ context.Context, s *edge.Stream) error { return s.Write(make([]byte, size)) }
				})
				c := f.dial("")
				c.Send(tt.request)
				n, err := int64(0), error(nil)
				for err == nil && n < size {
					var more int64
					more, err = io.CopyN(io.Discard, c.In, tt.each)
					n += more
					faketime.Pass(tt.pause)
				}
				require.Equal(t, tt.whole, n >= size, "%d bytes: %v", n, err)
				synctest.Wait()
				if !tt.whole {
					require.ErrorIs(t, err, io.EOF)
					require.Zero(t, f.Running(), "it holds nothing any more")
				}
			})
		})
	}
}

func TestRepliesOverHTTP2ThatAreNotReadAreReset(t *testing.T) {
	t.Parallel()
	secure := onTLS(t)
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, secure, func(o *options) { o.cfg.MaxBypass, o.do = 1, sized(16<<20) })
		client := f.client()
		first := f.begin(client, "GET", "/admin") //nolint:bodyclose // its body is not read, see begin
		require.Equal(t, 503, f.send(client, "GET", "/admin", nil).Status)
		begin := time.Now()
		for f.send(client, "GET", "/admin", nil).Status != 200 {
			faketime.Pass(time.Second)
			require.Less(t, time.Since(begin), 15*time.Second, "its place is free again")
		}
		_, err := io.Copy(io.Discard, first.Body)
		require.Error(t, err)
	})
}

func TestBodiesThatDoNotComeHoldNoPlaces(t *testing.T) {
	t.Parallel()
	monitor := "X-Worker-Id: w\r\nX-Build-Id: b"
	for name, slow := range map[string][2]string{
		"with the key": {"POST /json", keyed}, "of workers": {"POST /monitor", keyed + "\r\n" + monitor}, "of monitors": {"POST /monitor", monitor},
		"with a token": {"POST /build", "X-Build-Token: x"},
	} {
		for _, size := range []int{1000, 100000} {
			t.Run(name+strconv.Itoa(size), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					f := setup(t, func(o *options) { o.deps.Requests, o.cfg.TelemetryWithoutKey = &requests{most: 20}, true })
					length := "Content-Length: " + strconv.Itoa(size)
					begin, many := time.Now(), 300
					if name == "with a token" { // who has a key is served in another place
						many = 15
					}
					for range many {
						f.dial("10.0.0.1").Send(edgetest.Request(slow[0], slow[1], length) + "{")
					}
					synctest.Wait() // all of them hold what they can
					got := f.dial("10.0.0.2").Ask(edgetest.Request("POST /json", keyed, length) + "{}" + strings.Repeat(" ", size-2))
					require.Equal(t, 200, got.Status, got.Body)
					require.Zero(t, time.Since(begin), "at once")
				})
			})
		}
	}
}

func TestBodiesThatStandStillAreAnsweredAlsoWhenTheServerStops(t *testing.T) {
	t.Parallel()
	for _, length := range []string{"Content-Length: 1000", "Content-Length: 100000", "Transfer-Encoding: chunked"} {
		t.Run(length, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				do := &requests{}
				f := setup(t, func(o *options) { o.deps.Requests = do })
				c := f.dial("")
				c.Send(edgetest.Request("POST /json", keyed, length) + edgetest.Chunk("{"))
				synctest.Wait()
				require.Zero(t, do.running.Load())
				begin := time.Now()
				go func() { _ = f.stop() }()
				require.Equal(t, 400, c.Reply().Status)
				require.Equal(t, 5*time.Second, time.Since(begin))
			})
		})
	}
}

func TestClientsThatNeverReadTakeNothingFromProbesAndOperators(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, func(o *options) { o.do = sized(10 << 10) })
		begin, page, admin := time.Now(), edgetest.Request("GET /page"), edgetest.Request("GET /admin", "X-Admin-Key: "+adminKey)
		var stalled []*edgetest.Conn
		for _, request := range []string{livez, edgetest.Request("GET /readyz"), page} {
			for range 80 {
				c := f.dial("")
				c.Send(request)
				stalled = append(stalled, c)
			}
		}
		synctest.Wait() // all of them are being answered
		require.Equal(t, 200, f.ask("", livez))
		require.Equal(t, 200, f.ask("", edgetest.Request("GET /readyz")))
		require.Equal(t, 503, f.ask("", page), "pages have a limit")
		require.Equal(t, 200, f.ask("", admin))
		require.Equal(t, 200, f.ask("", page), "but not for an address that has shown a key")
		require.Zero(t, time.Since(begin))
		faketime.Pass(5*time.Second + 1)
		for _, c := range stalled {
			require.Zero(t, c.Cut())
		}
	})
}

func TestOperatorsHaveALimitOfTheirOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		f := setup(t, func(o *options) {
			o.cfg.MaxBypass = 1
			o.do = func(context.Context, echo.Context) (any, error) { <-hold; return "", nil }
		})
		admin := edgetest.Request("GET /admin", "X-Admin-Key: "+adminKey)
		first, page := f.dial(""), f.dial("")
		first.Send(admin)
		synctest.Wait()
		r := f.dial("").Ask(admin)
		require.Equal(t, []string{"503", "1"}, []string{strconv.Itoa(r.Status), r.Header.Get("Retry-After")})
		page.Send(edgetest.Request("GET /page"))
		synctest.Wait()
		require.Equal(t, 200, f.ask("", livez))
		close(hold)
		require.Equal(t, 200, first.Reply().Status)
		require.Equal(t, 200, page.Reply().Status, "it has nothing to do with that limit")
	})
}
