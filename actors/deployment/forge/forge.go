package forge

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"takt/store/tracing"
)

// DefaultURL is GitHub's own REST interface.
const DefaultURL = "https://api.github.com/"

// Config configures the forge. WorkDir is required.
type Config struct {
	// BaseURL is the REST interface: https://HOST/api/v3/ of a GitHub Enterprise
	// Server. Defaults to DefaultURL.
	BaseURL string
	// WorkDir holds mirrors while they are copied. It is made if missing. Only this
	// package may use it.
	WorkDir string
	// Environ is an environment. git gets only PATH, proxies and certificates from it.
	Environ []string
	// GitTimeout bounds one git command. Defaults to 1 hour.
	GitTimeout time.Duration
	// CallTimeout bounds one REST call. Defaults to 30 s.
	CallTimeout time.Duration
	// Creates bounds how many repositories are created with one credential.
	// Defaults to 80 per minute and 500 per hour, which is what GitHub allows.
	Creates []Limit
	// Tries is how often a call is made if the forge fails to answer. Defaults to 6.
	Tries int
	// Backoff is the wait before the second try. It doubles, up to 30 s. Defaults to 500
	// ms.
	Backoff time.Duration
	// SecondaryWait is the wait after a secondary limit without a time. Defaults to 1
	// minute, as GitHub recommends.
	SecondaryWait time.Duration
}

func (c Config) withDefaults() Config {
	c.BaseURL = cmp.Or(c.BaseURL, DefaultURL)
	c.GitTimeout = cmp.Or(c.GitTimeout, time.Hour)
	c.CallTimeout = cmp.Or(c.CallTimeout, 30*time.Second)
	c.Tries = cmp.Or(c.Tries, 6)
	c.Backoff = cmp.Or(c.Backoff, 500*time.Millisecond)
	c.SecondaryWait = cmp.Or(c.SecondaryWait, time.Minute)
	if len(c.Creates) == 0 {
		c.Creates = []Limit{{N: 80, Per: time.Minute}, {N: 500, Per: time.Hour}}
	}
	return c
}

// GitHub is a forge.
type GitHub struct {
	cfg     Config
	base    *url.URL
	http    *http.Client
	gitHTTP *http.Client // for git's own protocol: follows no redirect
	env     []string     // of git

	mu      sync.Mutex // guards what follows
	budgets map[[sha256.Size]byte]*budget
}

// New returns the forge. It makes WorkDir and does no other I/O.
func New(cfg Config) (*GitHub, error) {
	cfg = cfg.withDefaults()
	base, err := ParseBaseURL(cfg.BaseURL)
	if err != nil {
		return nil, err
	}
	if cfg.WorkDir == "" {
		return nil, errors.New("forge: a work directory is required")
	}
	if cfg.WorkDir, err = filepath.Abs(cfg.WorkDir); err != nil {
		return nil, fmt.Errorf("forge: work directory: %w", err)
	}
	if err := os.MkdirAll(cfg.WorkDir, 0o700); err != nil {
		return nil, fmt.Errorf("forge: making the work directory: %w", err)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 32, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true}
	traced := tracing.Outgoing(transport)
	return &GitHub{
		cfg: cfg, base: base, env: gitEnvironment(cfg.Environ, cfg.WorkDir),
		http:    &http.Client{Transport: traced, CheckRedirect: sameHost},
		gitHTTP: &http.Client{Transport: traced, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		budgets: map[[sha256.Size]byte]*budget{},
	}, nil
}

// ParseBaseURL checks the address of a REST interface.
func ParseBaseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("forge URL: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("forge URL: want https://HOST/, or https://HOST/api/v3/ of a GitHub Enterprise Server")
	}
	u.Path = strings.TrimSuffix(u.Path, "/") + "/"
	return u, nil
}

// sameHost follows the redirect of a renamed repository, but sends the credential to no
// other host.
func sameHost(req *http.Request, via []*http.Request) error {
	if len(via) > 5 || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// Close closes idle connections.
func (g *GitHub) Close() { g.http.CloseIdleConnections() }

// Clean removes the mirrors of killed processes from WorkDir. It must be called before
// the first copy.
func (g *GitHub) Clean() error {
	entries, err := os.ReadDir(g.cfg.WorkDir)
	if err != nil {
		return fmt.Errorf("cleaning the work directory: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(g.cfg.WorkDir, e.Name())); err != nil {
			return fmt.Errorf("cleaning the work directory: %w", err)
		}
	}
	return nil
}

// checkClone rejects clone addresses that the credential must not be sent to.
func (g *GitHub) checkClone(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.User != nil || u.Host == "" {
		return &Error{Message: "The forge gave an address that can't be cloned from"}
	}
	host := strings.TrimPrefix(g.base.Host, "api.")
	if u.Scheme != g.base.Scheme || u.Host != g.base.Host && u.Host != host {
		return &Error{Message: "The forge gave a clone address at another host, which the credential is not sent to"}
	}
	return nil
}
