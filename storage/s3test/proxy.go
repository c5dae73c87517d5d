package s3test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog" // net/http logs with it
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
)

// Proxy forwards requests to a Server, or does to them what its fault says. It is safe for
// concurrent use.
type Proxy struct {
	// Endpoint is its URL.
	Endpoint string
	fault    atomic.Pointer[Fault]
}

// Fault answers a request in place of the server, or lets pass answer it.
type Fault func(w http.ResponseWriter, r *http.Request, pass http.Handler)

// Proxy starts a proxy in front of s. It ends with the test.
func (s *Server) Proxy() *Proxy {
	s.tb.Helper()
	p, discard := &Proxy{}, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of what breaks on purpose
	p.Set(nil)
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", s.port)})
			r.Out.Host = r.In.Host // the signature covers it
		},
		FlushInterval: -1, Transport: &http.Transport{DisableKeepAlives: true}, ErrorLog: discard,
	}
	front := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: discard, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := *p.fault.Load(); fault != nil {
			fault(w, r, pass)
			return
		}
		pass.ServeHTTP(w, r)
	})}
	ln, err := new(net.ListenConfig).Listen(s.tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(s.tb, err)
	p.Endpoint = "http://" + ln.Addr().String()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = front.Serve(ln) // ends with Close
	}()
	s.tb.Cleanup(func() {
		_ = front.Close() // nobody is to be answered any more
		<-ended
	})
	return p
}

// Set makes a fault from now on; nil ends it.
func (p *Proxy) Set(f Fault) { p.fault.Store(&f) }

// Env returns takt's settings for the server behind the proxy.
func (p *Proxy) Env(s *Server) []string { return append(s.Env(), "TAKT_S3_ENDPOINT="+p.Endpoint) }

// Refuse answers everything with a status and one of S3's codes, as a full bucket
// (507, QuotaExceeded) or a busy server (503, SlowDown) does.
func Refuse(status int, code string) Fault {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>refused by the test</Message></Error>", code)
	}
}

// Swallow answers everything with 200 and does nothing, as a misled gateway does.
func Swallow(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
	_, _ = io.Copy(io.Discard, r.Body)
}

// Edit lets change see each piece of a body, with its offset: of uploads if up is true, else
// of downloads. change may alter the piece. An error breaks the connection.
func Edit(up bool, change func(piece []byte, at int64) error) Fault {
	return func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if up {
			r.Body = &edited{ReadCloser: r.Body, change: change}
			pass.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodGet {
			pass.ServeHTTP(w, r)
			return
		}
		pass.ServeHTTP(&editedWriter{ResponseWriter: w, change: change}, r)
	}
}

// Garble changes the byte at an offset.
func Garble(offset int64) func([]byte, int64) error {
	return func(piece []byte, at int64) error {
		if at <= offset && offset < at+int64(len(piece)) {
			piece[offset-at] ^= 1
		}
		return nil
	}
}

var errCut = errors.New("cut by the test")

// Cut breaks the connection once offset bytes have passed.
func Cut(offset int64) func([]byte, int64) error {
	return func(_ []byte, at int64) error {
		if at >= offset {
			return errCut
		}
		return nil
	}
}

// Delay lets each piece take longer.
func Delay(ctx context.Context, d time.Duration) func([]byte, int64) error {
	return func([]byte, int64) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

type edited struct {
	io.ReadCloser
	change func([]byte, int64) error
	at     int64
}

func (e *edited) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p[:min(len(p), 4096)])
	if n > 0 {
		if cerr := e.change(p[:n], e.at); cerr != nil {
			return 0, cerr
		}
		e.at += int64(n)
	}
	return n, err
}

type editedWriter struct {
	http.ResponseWriter
	change func([]byte, int64) error
	at     int64
}

// Unwrap is for http.ResponseController.
func (e *editedWriter) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *editedWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		piece := append([]byte{}, p[:min(len(p), 4096)]...)
		if e.change(piece, e.at) != nil {
			panic(http.ErrAbortHandler)
		}
		var m int
		m, err = e.ResponseWriter.Write(piece)
		n, e.at, p = n+m, e.at+int64(m), p[len(piece):]
	}
	return n, err
}
