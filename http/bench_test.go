package http_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
	"takt/store/seal"
)

// instant is a store that agrees to everything and a queue without builds.
type instant struct {
	takthttp.Builds
	takthttp.Queue
	build store.Build
}

func (i *instant) Find(context.Context, string) (store.Build, error)     { return i.build, nil }
func (i *instant) Held(context.Context, store.Beat) (store.Build, error) { return i.build, nil }
func (i *instant) Touch(context.Context, store.Beat) (store.BeatReply, error) {
	return store.BeatReply{}, nil
}
func (i *instant) Freed(string) {}
func (i *instant) Finish(ctx context.Context, r store.Result, files ...store.Staged) (bool, error) {
	i.build.Result, i.build.State = r.File, store.Completed
	return false, commitAll(ctx, files)
}

func (i *instant) Arrive(_ context.Context, r store.PollRequest, _ time.Duration) (store.PollReply, func(context.Context) (store.PollReply, error), error) {
	return store.PollReply{Token: r.Presented}, nil, nil
}

// tokensOf are tokens of workers with a key of this test's own.
func tokensOf(tb testing.TB) *store.WorkerTokens {
	tb.Helper()
	tokens := store.NewWorkerTokens(store.WorkerTokenTTL, make([]byte, 32))
	require.NoError(tb, tokens.Learn("here", time.Now()))
	return tokens
}

func benchServer(b *testing.B) (addr string) {
	b.Helper()
	return benchServerWith(b, inline{})
}

func benchServerWith(b *testing.B, requests edge.Requests) (addr string) {
	b.Helper()
	local, err := storage.OpenLocal(b.TempDir(), seal.NewRing(seal.Key{}))
	require.NoError(b, err)
	files, err := storage.NewFiles(storage.ModeLocal, local, nil)
	require.NoError(b, err)
	i := &instant{build: store.Build{ID: "build", Platform: store.IOS, State: store.Assigned, WorkerID: "worker"}}
	s, err := takthttp.New(takthttp.Deps{
		Builds: i, Queue: i, Tokens: tokensOf(b), Publish: (&published{}).publish, Files: files, Requests: requests, Metrics: prometheus.NewRegistry(), Logger: zerolog.Nop(),
	}, takthttp.Config{Config: edge.Config{APIKey: apiKey}, PollRate: -1})
	require.NoError(b, err)
	ln, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	ctx, cancel := context.WithCancelCause(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	b.Cleanup(func() {
		cancel(nil)
		require.NoError(b, <-ended)
		require.NoError(b, ln.Close())
		require.NoError(b, files.Close())
	})
	return ln.Addr().String()
}

func benchDial(b *testing.B, addr string) (net.Conn, *bufio.Reader) {
	b.Helper()
	c, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", addr)
	require.NoError(b, err)
	b.Cleanup(func() { c.Close() })
	return c, bufio.NewReaderSize(c, 1<<20)
}

const benchSize = 256 << 20

func benchUpload(b *testing.B, c net.Conn, r *bufio.Reader, piece []byte) {
	b.Helper()
	kind, body, length := bigForm("build", "worker", 0)
	form, err := io.ReadAll(body)
	require.NoError(b, err)
	head, tail := form[:len(form)-9], form[len(form)-9:]
	_, err = io.WriteString(c, "POST /api/workers/upload HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\nContent-Type: "+kind+
		"\r\nContent-Length: "+strconv.FormatInt(length+benchSize, 10)+"\r\n\r\n"+string(head))
	require.NoError(b, err)
	for range benchSize / len(piece) {
		if _, err := c.Write(piece); err != nil {
			b.Fatal(err)
		}
	}
	_, err = c.Write(tail)
	require.NoError(b, err)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(b, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(b, err)
	resp.Body.Close()
	require.Equal(b, 200, resp.StatusCode, string(text))
}

// BenchmarkUpload is a result over loopback, its client in the same process.
func BenchmarkUpload(b *testing.B) {
	c, r := benchDial(b, benchServer(b))
	piece := make([]byte, 1<<20) // as an archive: in other content boundaries take longer to rule out
	_, _ = rand.Read(piece)
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		benchUpload(b, c, r, piece)
	}
}

// BenchmarkDownload is the way back.
func BenchmarkDownload(b *testing.B) {
	c, r := benchDial(b, benchServer(b))
	benchUpload(b, c, r, make([]byte, 1<<20))
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		_, err := io.WriteString(c, "GET /api/builds/build/download HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\n\r\n")
		require.NoError(b, err)
		resp, err := http.ReadResponse(r, nil)
		require.NoError(b, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(b, err)
		resp.Body.Close()
	}
}

// BenchmarkPoll is a poll whose answer is known, over one of 64 connections.
func BenchmarkPoll(b *testing.B) {
	addr := benchServer(b)
	request := "GET /api/workers/poll HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + apiKey +
		"\r\nX-Worker-Token: " + tokensOf(b).Issue(store.WorkerToken{Worker: 7}) + "\r\n\r\n"
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		c, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		buf := make([]byte, 4096)
		for pb.Next() {
			if _, err := io.WriteString(c, request); err != nil {
				b.Error(err)
				return
			}
			if _, err := c.Read(buf); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
