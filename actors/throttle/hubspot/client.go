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

// MaxBatch is the most completions of one call.
const MaxBatch = 100

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 64 << 10

// Config says where HubSpot is. Zero values mean the real one.
type Config struct {
	// API is the base of completions. Defaults to https://api.hubapi.com.
	API string
	// AuthorizeURL, TokenURL and InfoURL are those of OAuth; InfoURL gets a slash
	// and the token. They default to https://app.hubspot.com/oauth/authorize and,
	// below API, /oauth/v1/token and /oauth/v1/access-tokens.
	AuthorizeURL, TokenURL, InfoURL string
	// Timeout bounds a whole call. Defaults to 30 seconds.
	Timeout time.Duration
	// ConnectTimeout and AnswerTimeout bound its parts. They default to 10 and 15
	// seconds.
	ConnectTimeout, AnswerTimeout time.Duration
}

func (c Config) withDefaults() Config {
	c.API = strings.TrimSuffix(cmp.Or(c.API, "https://api.hubapi.com"), "/")
	c.AuthorizeURL = cmp.Or(c.AuthorizeURL, "https://app.hubspot.com/oauth/authorize")
	c.TokenURL = cmp.Or(c.TokenURL, c.API+"/oauth/v1/token")
	c.InfoURL = strings.TrimSuffix(cmp.Or(c.InfoURL, c.API+"/oauth/v1/access-tokens"), "/")
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.ConnectTimeout = min(cmp.Or(c.ConnectTimeout, 10*time.Second), c.Timeout)
	c.AnswerTimeout = min(cmp.Or(c.AnswerTimeout, 15*time.Second), c.Timeout)
	return c
}

// Client calls HubSpot.
type Client struct {
	cfg  Config
	http *http.Client
}

// NewClient returns a client. It connects when it is used.
func NewClient(cfg Config) *Client {
	cfg = cfg.withDefaults()
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second}
	return &Client{cfg: cfg, http: &http.Client{
		Transport: &http.Transport{
			Proxy:       http.ProxyFromEnvironment,
			DialContext: dialer.DialContext,
			// One portal's connections are no other's: there is no bound on them
			// here, only on each portal's calls.
			MaxIdleConns: 256, MaxIdleConnsPerHost: 128,
			IdleConnTimeout:       90 * time.Second,
			TLSHandshakeTimeout:   cfg.ConnectTimeout,
			ResponseHeaderTimeout: cfg.AnswerTimeout,
			ForceAttemptHTTP2:     true,
		},
		// A redirect would take the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Timeout is how long one call takes at most.
func (c *Client) Timeout() time.Duration { return c.cfg.Timeout }

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
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, errNoAnswer)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.API+"/automation/v4/actions/callbacks/complete", bytes.NewReader(body))
	if err != nil {
		return Answer{Err: fmt.Errorf("completing: %w", err)}
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	return c.do(req, token)
}

// do calls and reads the answer, or what there is of it. The answer's text goes
// into logs and the database: secrets, which req holds, are taken out of it.
func (c *Client) do(req *http.Request, secrets ...string) Answer {
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{Err: withoutURL(err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	a := newAnswer(resp.StatusCode, resp.Header, body)
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
