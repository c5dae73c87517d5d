package hubspottest

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"
)

// Config says how strict the stand-in is. Zero values mean the defaults.
type Config struct {
	// ClientID and ClientSecret are the app's. The ID defaults to "client", the secret to
	// a random one.
	ClientID, ClientSecret string
	// TokenLife is how long an access token is valid. Defaults to 30 minutes.
	TokenLife time.Duration
	// RollingLimit is how many calls a portal may make in RollingWindow. They
	// default to 110 in 10 seconds; a negative limit means none.
	RollingLimit  int
	RollingWindow time.Duration
	// Rotate makes each refresh return a new refresh token and invalidate the old one.
	Rotate bool
	// Echo makes errors repeat the secrets of the request. HubSpot's errors are not known
	// to do that, but takt must not depend on it.
	Echo bool
}

// Completion is one execution that HubSpot was asked to continue.
type Completion struct {
	PortalID   int64
	CallbackID string
	State      string
	At         time.Time
}

// Fault replaces the answer to a call to complete.
type Fault struct {
	// Status and Body are the answer. A Status of 0 cuts the connection.
	Status int
	Body   string
	Header map[string]string
	// After records the completions before the call fails, as if only the reply was lost.
	After bool
	// Delay is added before the answer, whatever the answer is. With Status 204, the call
	// is handled normally after it.
	Delay time.Duration
	// Times is how many calls the fault applies to. Defaults to all calls until Heal.
	Times int
	// Only limits the fault to one callback; "" means all.
	Only string
}

// portal is a customer's account.
type portal struct {
	refresh   string
	access    map[string]time.Time // when each token expires
	calls     []time.Time          // in the rolling window
	faults    []*Fault
	refreshes int
	total     int
}

// HubSpot is the stand-in. Make it with New.
type HubSpot struct {
	cfg Config
	mux *http.ServeMux

	mu      sync.Mutex // guards what follows
	portals map[int64]*portal
	codes   map[string]grant
	record  []Completion
	begun   map[string]int // completions per callback
	given   []string       // all secrets ever issued
}

// grant is what was granted with a code.
type grant struct {
	portal   int64
	redirect string
}

// New returns a stand-in without portals.
func New(cfg Config) *HubSpot {
	cfg.ClientID = cmp.Or(cfg.ClientID, "client")
	cfg.ClientSecret = cmp.Or(cfg.ClientSecret, rand.Text())
	cfg.TokenLife = cmp.Or(cfg.TokenLife, 30*time.Minute)
	cfg.RollingLimit = cmp.Or(cfg.RollingLimit, 110)
	cfg.RollingWindow = cmp.Or(cfg.RollingWindow, 10*time.Second)
	h := &HubSpot{
		cfg: cfg, mux: http.NewServeMux(),
		portals: map[int64]*portal{}, codes: map[string]grant{}, begun: map[string]int{},
	}
	h.mux.HandleFunc("GET /oauth/authorize", h.authorize)
	h.mux.HandleFunc("POST /oauth/v1/token", h.token)
	h.mux.HandleFunc("GET /oauth/v1/access-tokens/{token}", h.whose)
	h.mux.HandleFunc("POST /automation/v4/actions/callbacks/complete", h.complete)
	return h
}

// Config returns the configuration with the defaults filled in.
func (h *HubSpot) Config() Config { return h.cfg }

// Env returns the environment of a controller that uses this stand-in, served at base, as
// HubSpot.
func (h *HubSpot) Env(base string) []string {
	return []string{
		"TAKT_HUBSPOT_API_URL=" + base,
		"TAKT_HUBSPOT_CLIENT_ID=" + h.cfg.ClientID, "TAKT_HUBSPOT_CLIENT_SECRET=" + h.cfg.ClientSecret,
	}
}

// Start serves on a free loopback port and returns the base URL. stop cuts hanging
// requests and waits for all connections to end.
func (h *HubSpot) Start() (base string, stop func()) {
	server := httptest.NewServer(h.mux)
	return server.URL, func() {
		server.CloseClientConnections()
		server.Close()
	}
}

// AddPortal adds portals that may install the app.
func (h *HubSpot) AddPortal(ids ...int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		h.portals[id] = &portal{access: map[string]time.Time{}}
	}
}

// Fail makes a portal's calls fail from now on. The faults are used in order.
func (h *HubSpot) Fail(portal int64, faults ...Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range faults {
		h.portals[portal].faults = append(h.portals[portal].faults, &f)
	}
}

// Heal ends all of a portal's faults.
func (h *HubSpot) Heal(portal int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.portals[portal].faults = nil
}

// Revoke makes a portal's access tokens invalid before they expire.
func (h *HubSpot) Revoke(portal int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.portals[portal].access)
}

// Uninstall invalidates all of a portal's tokens.
func (h *HubSpot) Uninstall(portal int64) {
	h.Revoke(portal)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.portals[portal].refresh = ""
}

// Completions returns the recorded completions in order.
func (h *HubSpot) Completions() []Completion {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.record)
}

// Distinct returns how many different callbacks were completed.
func (h *HubSpot) Distinct() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.begun)
}

// Refreshes returns how often a portal's tokens were refreshed.
func (h *HubSpot) Refreshes(portal int64) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.portals[portal].refreshes
}

// Calls returns how many calls to complete a portal has made.
func (h *HubSpot) Calls(portal int64) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.portals[portal].total
}

// Tokens returns all secrets that were ever issued, so that tests can search for them
// where they must not appear.
func (h *HubSpot) Tokens() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.given)
}
