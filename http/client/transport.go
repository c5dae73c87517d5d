package client

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// NewTransport returns the transport that [New] uses by default. It pools connections
// and limits the time to connect, but not the length of a transfer.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        64,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
		// A refusal (queue full, wrong key) then comes before the upload.
		ExpectContinueTimeout: 2 * time.Second,
		// Digests and ranges refer to the bytes as they are stored.
		DisableCompression: true,
		WriteBufferSize:    64 << 10,
		ReadBufferSize:     64 << 10,
	}
}

// watch ends a stalled transfer. It needs no goroutine, because each byte that moves
// resets a timer.
type watch struct {
	timer *time.Timer
	limit atomic.Int64 // time.Duration
}

// newWatch returns a context, its watch, and the function that frees both. The
// context is cancelled with errStalled when the watch is not touched for limit.
func newWatch(ctx context.Context, limit time.Duration) (context.Context, *watch, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{timer: time.AfterFunc(limit, func() { cancel(errStalled) })}
	w.limit.Store(int64(limit))
	return ctx, w, func() {
		w.timer.Stop()
		cancel(context.Canceled)
	}
}

func (w *watch) touch() { w.timer.Reset(time.Duration(w.limit.Load())) }

// allow changes the limit and restarts the timer.
func (w *watch) allow(limit time.Duration) {
	w.limit.Store(int64(limit))
	w.touch()
}

// sending is an upload's body with a watch.
type sending struct {
	io.ReadCloser
	watch *watch
	// reply is the limit that applies once all is sent.
	reply    time.Duration
	sent     int64
	total    int64
	progress Progress
}

func (s *sending) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.sent += int64(n)
	if err == nil {
		s.watch.touch()
	} else {
		s.watch.allow(s.reply)
	}
	if n > 0 && s.progress != nil {
		s.progress(s.sent, s.total)
	}
	return n, err
}

// open makes a call and returns the reply with its body unread, under a watch. Any
// status below 300 is returned. The caller must close the reply's body.
func (c *Client) open(ctx context.Context, cl call) (*http.Response, error) {
	inner, w, free := newWatch(ctx, c.cfg.StallTimeout)
	resp, err := c.send(ctx, inner, cl)
	if err != nil {
		free()
		return nil, err
	}
	w.touch()
	resp.Body = &receiving{ReadCloser: resp.Body, cl: cl, outer: ctx, inner: inner, watch: w, free: free}
	if resp.StatusCode >= http.StatusMultipleChoices {
		defer resp.Body.Close()
		defer drain(resp.Body)
		return nil, refused(cl, resp)
	}
	return resp, nil
}

// receiving is a reply's body with a watch. Its errors have the form of the package's
// errors. Close frees the watch.
type receiving struct {
	io.ReadCloser
	cl           call
	outer, inner context.Context // one call's, needed to name what broke it
	watch        *watch
	free         func()
}

func (r *receiving) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if n > 0 {
		r.watch.touch()
	}
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader's contract
		err = noReply(r.outer, r.inner, r.cl, err)
	}
	return n, err
}

func (r *receiving) Close() error {
	err := r.ReadCloser.Close()
	r.free()
	return err
}

// Progress is called with the number of bytes that have moved and the total (-1 if
// unknown). A repeated transfer starts again at 0. It is called from one goroutine at
// a time and must not block.
type Progress func(done, total int64)
