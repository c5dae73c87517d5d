package http_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/heijunka"
	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/request"
	takthttp "takt/http"
	"takt/http/edge"
	"takt/store"
	"takt/store/postgres"
)

// bare runs requests as processes without levelling.
type bare struct{ request.Requests }

func (r bare) Do(ctx context.Context, w store.Work, fn func(context.Context) error) error {
	return r.Run(ctx, w.Domain, &w, fn)
}

// BenchmarkLevelled is a route that needs a key and does next to nothing, over 64
// connections: with load levelling, with request processes only, and with neither,
// in turns. It reports rates as shares of each other.
func BenchmarkLevelled(b *testing.B) {
	h, requests := benchLevelling(b)
	on, process, off := benchServer(b, h), benchServer(b, bare{requests}), benchServer(b, inline{})

	for b.Loop() {
		var toProcess, toOff, rates []float64
		for range 5 {
			fast, middle, slow := pollRate(b, off), pollRate(b, process), pollRate(b, on)
			toProcess, toOff, rates = append(toProcess, slow/middle), append(toOff, slow/fast), append(rates, slow)
		}
		b.ReportMetric(middleOf(toOff), "on/off")
		b.ReportMetric(middleOf(toProcess), "on/process-only")
		b.ReportMetric(middleOf(rates), "polls/s")
	}
}

// benchLevelling returns load levelling as takt has it, and request processes without it.
func benchLevelling(b *testing.B) (*heijunka.Heijunka, request.Requests) {
	b.Helper()
	sys := otp.New(otp.Options{Logger: zerolog.Nop()})
	bus := pubsub.New()
	requests := request.New(sys, heijunka.Names()...)
	_, err := sys.StartRoot(b.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{
		bus.Spec(), {ID: "request_sup", Supervisor: func() otp.SupSpec { return otp.SupSpec{Children: request.Specs(heijunka.Names()...)} }},
	}})
	require.NoError(b, err)
	b.Cleanup(func() { sys.Shutdown(context.Background()) })
	return heijunka.New(sys, heijunka.Deps{Run: requests.Run, Bus: bus, Settings: postgres.NewHeijunka(postgres.New())}, heijunka.Config{}), requests
}

// BenchmarkShare is takt's own share of a request, without net/http: what a poll and the trivial
// route of takt-bench allocate.
func BenchmarkShare(b *testing.B) {
	h, _ := benchLevelling(b)
	i := &instant{}
	s, _ := newServer(b, takthttp.Deps{Builds: i, Queue: i, Requests: h, Logger: zerolog.Nop()}, func(c *takthttp.Config) { c.PollRate = -1 })
	handler := s.Handler()
	for name, r := range map[string]*http.Request{
		"poll":    httptest.NewRequest("GET", "/api/workers/poll", nil),
		"trivial": httptest.NewRequest("POST", "/api/builds/x/heartbeat", nil),
	} {
		ctx, cancel := context.WithCancelCause(b.Context()) // net/http has one, too
		defer cancel(nil)
		r = r.WithContext(ctx)
		r.Header.Set("X-API-Key", apiKey)
		r.Header.Set("X-Worker-Token", tokensOf(b).Issue(store.WorkerToken{Worker: 7}))
		r.Body = http.NoBody
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := discarded{http.Header{}}
				handler.ServeHTTP(w, r)
			}
		})
	}
}

// discarded is a reply that nobody reads.
type discarded struct{ header http.Header }

func (d discarded) Header() http.Header            { return d.header }
func (discarded) WriteHeader(int)                  {}
func (discarded) Write(p []byte) (int, error)      { return len(p), nil }
func (discarded) SetWriteDeadline(time.Time) error { return nil }
func (discarded) SetReadDeadline(time.Time) error  { return nil }

func benchServer(b *testing.B, requests edge.Requests) (addr string) {
	b.Helper()
	i := &instant{}
	s, _ := newServer(b, takthttp.Deps{Builds: i, Queue: i, Requests: requests, Logger: zerolog.Nop()}, func(c *takthttp.Config) { c.PollRate = -1 })
	url, _ := serve(b, s, listen(b))
	return strings.TrimPrefix(url, "http://")
}

func middleOf(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// pollRate polls over 64 connections for a second.
func pollRate(b *testing.B, addr string) float64 {
	b.Helper()
	request := "GET /api/workers/poll HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + apiKey + "\r\nX-Worker-Token: " + tokensOf(b).Issue(store.WorkerToken{Worker: 7}) + "\r\n\r\n"
	var polls atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for range 64 {
		wg.Go(func() {
			c, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			buf := make([]byte, 4096)
			for time.Since(begin) < time.Second {
				if _, err := io.WriteString(c, request); err != nil {
					b.Error(err)
					return
				}
				if n, err := c.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 200") {
					b.Error(err, string(buf[:n]))
					return
				}
				polls.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(polls.Load()) / time.Since(begin).Seconds()
}
