package hubspot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"takt/store"
	"takt/store/backoff"
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

var errNoAnswer = errors.New("HubSpot did not answer in time")

// statusMoving is a status of HubSpot that net/http has no name for.
const statusMoving = 477

// Answer is what HubSpot said.
type Answer struct {
	// Status is 0 if there was no answer; Err is why.
	Status int
	Body   []byte
	Err    error
	// RetryAfter is the wait that HubSpot demands, 0 without one.
	RetryAfter time.Duration
	// Remaining is how many more calls the portal may make in Interval, -1 if HubSpot
	// does not say.
	Remaining int
	Interval  time.Duration
	// message and policy are the fields of HubSpot's error body, empty if the body is not
	// HubSpot's.
	message, policy string
}

// Kind is what an answer means.
type Kind uint8

// The kinds.
const (
	// Done: HubSpot did what was asked.
	Done Kind = iota
	// BadToken: 401. The token may have been revoked.
	BadToken
	// Wait: nothing was done, and nothing is wrong; try again after Answer.Pause.
	Wait
	// Blocked: 403 from HubSpot or from its edge servers. Nothing was done.
	Blocked
	// Refused: HubSpot rejects this request, and a retry will not help.
	Refused
	// Broken: HubSpot failed. The request may have been carried out.
	Broken
	// Silent: there was no answer. The request may have been carried out, or may still
	// be.
	Silent
)

// String names the kind for metrics.
func (k Kind) String() string {
	return [...]string{"done", "bad_token", "wait", "blocked", "refused", "broken", "silent"}[k]
}

func newAnswer(status int, h http.Header, body []byte) Answer {
	a := Answer{Status: status, Body: body, Remaining: -1}
	asked, _ := backoff.RetryAfter(h.Get("Retry-After"), time.Now())
	a.RetryAfter = min(asked, 24*time.Hour)
	if n, err := strconv.Atoi(h.Get("X-Hubspot-Ratelimit-Remaining")); err == nil && n >= 0 {
		a.Remaining = n
	}
	if n, err := strconv.Atoi(h.Get("X-Hubspot-Ratelimit-Interval-Milliseconds")); err == nil && n > 0 {
		a.Interval = min(time.Duration(n)*time.Millisecond, time.Hour)
	}
	if a.OK() {
		return a
	}
	var e struct {
		Message string `json:"message"`
		Policy  string `json:"policyName"`
	}
	if json.Unmarshal(body, &e) == nil {
		a.message, a.policy = e.Message, e.Policy
	}
	return a
}

// OK reports whether HubSpot did what was asked.
func (a Answer) OK() bool { return a.Status >= 200 && a.Status <= 299 }

// Kind returns the meaning of the answer.
func (a Answer) Kind() Kind {
	switch s := a.Status; {
	case s == 0:
		return Silent
	case a.OK():
		return Done
	case s == http.StatusUnauthorized:
		return BadToken
	case s == http.StatusTooManyRequests, s == http.StatusLocked, s == statusMoving:
		return Wait
	case s == http.StatusForbidden:
		return Blocked
	case s >= 500:
		return Broken
	default: // also a redirect: such an answer is not from HubSpot
		return Refused
	}
}

// Pause is how long the portal gets no calls after an answer of kind Wait.
func (a Answer) Pause() time.Duration {
	switch {
	case a.RetryAfter > 0:
		return a.RetryAfter
	case a.Status == http.StatusLocked:
		return 2 * time.Second
	case a.Status == statusMoving:
		return time.Minute
	}
	switch a.policy {
	case "SECONDLY":
		return time.Second
	case "DAILY":
		return 15 * time.Minute // the daily limit is spent: try again until the day is over
	default:
		return 10 * time.Second
	}
}

// String describes the answer in one line for operators. It contains no secret.
func (a Answer) String() string {
	switch {
	case a.Status == 0:
		return fmt.Sprintf("no answer: %v", a.Err)
	case a.message != "":
		return fmt.Sprintf("HubSpot said %d: %s", a.Status, store.Clip(store.OneLine(a.message), 200))
	default:
		return fmt.Sprintf("HubSpot said %d", a.Status)
	}
}

// withoutURL removes the URL from net/http's error, because it may contain a token.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
