package openapitest

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Transport returns base with a check of each reply. A reply that the document does
// not describe fails the test.
func (c *Checker) Transport(tb testing.TB, base http.RoundTripper) http.RoundTripper {
	tb.Helper()
	return transport{c, tb, base}
}

type transport struct {
	*Checker
	tb   testing.TB
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper. It reads a JSON body to its end and returns
// a copy.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	var body []byte
	var broken error // the caller gets it from Read
	if strings.HasSuffix(resp.Header.Get("Content-Type"), "json") {
		body, broken = io.ReadAll(resp.Body)
		resp.Body = &replayed{Reader: bytes.NewReader(body), end: broken, Closer: resp.Body}
	}
	if broken == nil && t.tb.Context().Err() == nil {
		if fault := t.Reply(r.Method, r.URL.EscapedPath(), resp.StatusCode, resp.Header, body); fault != nil {
			t.tb.Errorf("%v", fault)
		}
	}
	return resp, nil
}

// CloseIdleConnections makes http.Client.CloseIdleConnections reach base.
func (t transport) CloseIdleConnections() {
	if b, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		b.CloseIdleConnections()
	}
}

// replayed is a body that was already read, with the error that ended it.
type replayed struct {
	*bytes.Reader
	io.Closer
	end error
}

// Read implements io.Reader.
func (r *replayed) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err == io.EOF && r.end != nil {
		err = r.end
	}
	return n, err
}
