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
	// API is the base of all calls. Defaults to https://api.hubapi.com. The page
	// for people is at https://app.hubspot.com then, and below API otherwise.
	API string
	// Timeout bounds a whole call. Defaults to 30 seconds.
	Timeout time.Duration
}

// Client calls HubSpot.
type Client struct {
	api, pages string // base URLs
	timeout    time.Duration
	http       *http.Client
}

// NewClient returns a client. It connects when it is used.
func NewClient(cfg Config) *Client {
	c := &Client{timeout: cmp.Or(cfg.Timeout, 30*time.Second)}
	c.api = strings.TrimSuffix(cmp.Or(cfg.API, "https://api.hubapi.com"), "/")
	c.pages = strings.TrimSuffix(cmp.Or(cfg.API, "https://app.hubspot.com"), "/")
	connect := min(connectTime, c.timeout)
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy:       http.ProxyFromEnvironment,
			DialContext: dialer.DialContext,
			// One portal's connections are no other's: there is no bound on them
			// here, only on each portal's calls.
			MaxIdleConns: 256, MaxIdleConnsPerHost: 128,
			IdleConnTimeout:       90 * time.Second,
			TLSHandshakeTimeout:   connect,
			ResponseHeaderTimeout: min(answerTime, c.timeout),
			ForceAttemptHTTP2:     true,
		},
		// A redirect would take the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// Timeout is how long one call takes at most.
func (c *Client) Timeout() time.Duration { return c.timeout }

// CloseIdle gives unused connections up.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// Completion tells HubSpot what became of an execution.
type Completion struct {
	CallbackID   string       `json:"callbackId"`
	OutputFields OutputFields `json:"outputFields"`
}

// OutputFields say what an execution does next.
type OutputFields struct {
	State State `json:"hs_execution_state"`
}

// State is what becomes of an execution.
type State string

// The states that a workflow goes on with.
const (
	Success      State = "SUCCESS"
	FailContinue State = "FAIL_CONTINUE"
)

// Complete completes executions of one portal, at most MaxBatch, each once, in
// one call.
func (c *Client) Complete(ctx context.Context, token string, list []Completion) Answer {
	body, err := json.Marshal(map[string]any{"inputs": list})
	if err != nil {
		return Answer{Err: fmt.Errorf("completing: %w", err)}
	}
	headers := map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json"}
	return c.do(ctx, http.MethodPost, "/automation/v4/actions/callbacks/complete", body, headers, token)
}

// do calls and reads the answer, or what there is of it. The answer's text goes
// into logs and the database: secrets, which the request holds, are taken out.
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
		a.Body = nil // half of an error is none
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // so that the connection can be used again
	return a
}
