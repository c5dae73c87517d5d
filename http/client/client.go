package client

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"takt/http/api"
)

// Config says how to reach a controller.
type Config struct {
	// BaseURL is the controller's address, such as "http://127.0.0.1:3000".
	// A path is kept as a prefix.
	BaseURL string
	// APIKey is sent on every call except the public ones. It may be empty for calls
	// that a build token allows.
	APIKey string
	// AdminKey is sent on /admin calls, and on calls that may use the controller's
	// own forge credential for a deployment.
	AdminKey string
	// RootCAs are the authorities to trust for an https controller; nil means the
	// system's. Not used with HTTPClient.
	RootCAs *x509.CertPool
	// HTTPClient replaces the default client. New sets its own redirect rule on a
	// copy of it.
	HTTPClient *http.Client
	// UserAgent defaults to "takt".
	UserAgent string
	// CallTimeout bounds a call that carries no file. Defaults to 30 s. A poll adds
	// its wait to it.
	CallTimeout time.Duration
	// StallTimeout ends a transfer when no byte has moved for that long. Defaults to
	// 60 s.
	StallTimeout time.Duration
	// ReplyTimeout is how long the controller may take to answer after an upload's
	// last byte, because it syncs the file first. Defaults to 5 min.
	ReplyTimeout time.Duration
}

func (c Config) withDefaults() Config {
	c.UserAgent = cmp.Or(c.UserAgent, "takt")
	c.CallTimeout = cmp.Or(c.CallTimeout, 30*time.Second)
	c.StallTimeout = cmp.Or(c.StallTimeout, time.Minute)
	c.ReplyTimeout = cmp.Or(c.ReplyTimeout, 5*time.Minute)
	if c.HTTPClient == nil {
		t := NewTransport()
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.RootCAs}
		c.HTTPClient = &http.Client{Transport: t}
	}
	return c
}

// Client calls one controller.
type Client struct {
	cfg  Config
	base *url.URL
	http *http.Client
}

// New returns a client. It does no I/O.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	base, err := url.Parse(strings.TrimRight(cfg.BaseURL, "/"))
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		if guess, err := url.Parse("http://" + cfg.BaseURL); err == nil && guess.Host != "" && !strings.Contains(cfg.BaseURL, "://") {
			return nil, fmt.Errorf("controller URL: want http://host:port or https://host; did you mean %s?", guess.Redacted())
		}
		return nil, errors.New("controller URL: want http://host:port or https://host")
	}
	if base.RawQuery != "" || base.Fragment != "" {
		return nil, errors.New("controller URL: no query and no fragment, please")
	}
	for name, key := range map[string]string{"API key": cfg.APIKey, "admin key": cfg.AdminKey} {
		if strings.ContainsAny(key, "\r\n\x00") {
			return nil, fmt.Errorf("%s: holds a line break", name)
		}
	}
	own := *cfg.HTTPClient
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{cfg: cfg, base: base, http: &own}, nil
}

// BaseURL is the controller's address as given, without a trailing slash.
func (c *Client) BaseURL() string { return strings.TrimRight(c.cfg.BaseURL, "/") }

// CloseIdle closes the idle connections.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// BuildAuth gives access to one build without the API key.
type BuildAuth struct {
	// Token is the build's access token; may be empty.
	Token string
}

// of is the input of endpoints for a build.
func (a BuildAuth) of(id string) api.BuildAccess {
	return api.BuildAccess{ID: api.BuildID(id), Token: a.Token}
}

// Held identifies a build for calls of the worker that holds it.
type Held struct {
	BuildID  string
	WorkerID string
	// Attempt is the job's attempt; 0 leaves the header out.
	Attempt int
	// Instance is the id of the worker's process, as it registered; may be empty.
	Instance string
	// Token is the worker's token. Only Heartbeat sends it, unless it is empty.
	Token string
}

// holding is b as the input of endpoints.
func (b Held) holding() api.HoldingWithBuild {
	return api.HoldingWithBuild{Holding: api.Holding{
		WorkerID: api.HolderID(b.WorkerID), ID: api.BuildID(b.BuildID), BuildID: b.BuildID, Process: b.process(),
	}}
}

func (b Held) process() api.Process { return api.Process{Attempt: b.Attempt, Instance: b.Instance} }
