package hubspot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// MaxBatch is the most completions of one call.
	MaxBatch = 100
	// maxAnswer is how much of an answer is read, in bytes.
	maxAnswer = 64 << 10
	// connectTime and answerTime bound the parts of a call.
	connectTime = 10 * time.Second
	answerTime  = 15 * time.Second
)

// Config says where HubSpot is. Zero values mean the real one.
type Config struct {
	// API is the base URL of all calls. Defaults to https://api.hubapi.com. The
	// authorization page is at https://app.hubspot.com by default, else below API.
	API string
	// Timeout bounds a whole call. Defaults to 30 seconds.
	Timeout time.Duration
	// Wrap, if it is set, wraps the transport of all calls.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Client calls HubSpot.
type Client struct {
	api, pages string // base URLs
	timeout    time.Duration
	http       *http.Client
}

// NewClient returns a client. It connects at the first call.
func NewClient(cfg Config) *Client {
	c := &Client{timeout: cmp.Or(cfg.Timeout, 30*time.Second)}
	c.api = strings.TrimSuffix(cmp.Or(cfg.API, "https://api.hubapi.com"), "/")
	c.pages = strings.TrimSuffix(cmp.Or(cfg.API, "https://app.hubspot.com"), "/")
	connect := min(connectTime, c.timeout)
	wrap := cfg.Wrap
	if wrap == nil {
		wrap = func(t http.RoundTripper) http.RoundTripper { return t }
	}
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	c.http = &http.Client{
		Transport: wrap(&http.Transport{
			Proxy:       http.ProxyFromEnvironment,
			DialContext: dialer.DialContext,
			// The transport sets no limit per host, because portals share the host and
			// each portal limits its own calls.
			MaxIdleConns: 256, MaxIdleConnsPerHost: 128,
			IdleConnTimeout:       90 * time.Second,
			TLSHandshakeTimeout:   connect,
			ResponseHeaderTimeout: min(answerTime, c.timeout),
			ForceAttemptHTTP2:     true,
		}),
		// Redirects are not followed, because the token would go to another address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// Timeout is the time limit of one call.
func (c *Client) Timeout() time.Duration { return c.timeout }

// CloseIdle closes unused connections.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// Completion is the outcome of an execution, for HubSpot.
type Completion struct {
	CallbackID   string       `json:"callbackId"`
	OutputFields OutputFields `json:"outputFields"`
}

// Complete completes executions of one portal in one call. list has at most MaxBatch
// entries, each execution once.
func (c *Client) Complete(ctx context.Context, token string, list []Completion) Answer {
	body, err := json.Marshal(map[string]any{"inputs": list})
	if err != nil {
		return Answer{Err: fmt.Errorf("completing: %w", err)}
	}
	headers := map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json"}
	return c.do(ctx, http.MethodPost, "/automation/v4/actions/callbacks/complete", body, headers, token)
}

// do makes a call and reads the answer, even if it is incomplete. It removes the
// request's secrets from the answer's text, because the text goes into logs and the
// database.
func (c *Client) do(ctx context.Context, method, path string, body []byte, headers map[string]string, secrets ...string) Answer {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errNoAnswer)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.api+path, bytes.NewReader(body))
	if err != nil {
		return Answer{Err: withoutURL(err)}
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{Err: withoutURL(err)}
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	a := newAnswer(resp.StatusCode, resp.Header, content)
	for _, s := range secrets {
		if s != "" {
			a.message = strings.ReplaceAll(a.message, s, "…")
		}
	}
	if err != nil && !a.OK() {
		a.Body = nil // an incomplete body is dropped
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // so that the connection can be reused
	return a
}
