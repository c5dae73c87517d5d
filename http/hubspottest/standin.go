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

// Config says how strict it is. Zero values mean the defaults.
type Config struct {
	// ClientID and ClientSecret are the app's. They default to "client" and a
	// random one.
	ClientID, ClientSecret string
	// TokenLife is how long an access token is good. Defaults to 30 minutes.
	TokenLife time.Duration
	// RollingLimit is how many calls a portal may make in RollingWindow. They
	// default to 110 in 10 seconds; a negative limit means none.
	RollingLimit  int
	RollingWindow time.Duration
	// Rotate makes each refresh give a new refresh token and forget the old one.
	Rotate bool
	// Echo makes errors repeat the secrets that they are about, which HubSpot's are
	// not known to do, and takt must not depend on.
	Echo bool
}

// Completion is one execution that HubSpot was told to go on with.
type Completion struct {
	PortalID   int64
	CallbackID string
	State      string
	At         time.Time
}

// Fault is what a call to complete is answered with instead.
type Fault struct {
	// Status and Body, or the connection is cut if Status is 0.
	Status int
	Body   string
	Header map[string]string
	// After carries the call out before it fails: a lost reply.
	After bool
	// Delay is how long it takes to answer, whatever the answer; with Status 204
	// it answers as it would.
	Delay time.Duration
	// Times is how many calls it lasts. Defaults to all until it is cleared.
	Times int
	// Only is the callback that it is for; "" for all.
	Only string
}

// portal is a customer's account.
type portal struct {
	refresh   string
	access    map[string]time.Time // until when each token is good
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
	held    chan struct{}  // refreshes wait until it is closed, if there is one
	waiting int            // refreshes that do
	given   []string       // all secrets that were ever given
}

// grant is what a code stands for.
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
	h.mux.HandleFunc("POST /automation/v4/actions/callbacks/complete", h.completeMany)
	return h
}

// Config returns the settings, defaults filled in.
func (h *HubSpot) Config() Config { return h.cfg }

// Env returns the settings of a controller that takes it, served at base, for
// HubSpot.
func (h *HubSpot) Env(base string) []string {
	return []string{
		"TAKT_HUBSPOT_API_URL=" + base,
		"TAKT_HUBSPOT_CLIENT_ID=" + h.cfg.ClientID, "TAKT_HUBSPOT_CLIENT_SECRET=" + h.cfg.ClientSecret,
	}
}

// Start serves on a free loopback port and returns the base URL. stop cuts what
// still hangs, and waits for all connections to end.
func (h *HubSpot) Start() (base string, stop func()) {
	server := httptest.NewServer(h.mux)
	return server.URL, func() {
		server.CloseClientConnections()
		server.Close()
	}
}

// AddPortal makes a portal that may install the app.
func (h *HubSpot) AddPortal(ids ...int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		h.portals[id] = &portal{access: map[string]time.Time{}}
	}
}

// Fail makes a portal's calls fail from now on; faults are used one after the
// other.
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

// Revoke makes a portal's access tokens worthless before their time.
func (h *HubSpot) Revoke(portal int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.portals[portal].access)
}

// Uninstall takes all of a portal's tokens back.
func (h *HubSpot) Uninstall(portal int64) {
	h.Revoke(portal)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.portals[portal].refresh = ""
}

// Completions returns the record, in order.
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

// HoldRefreshes has refreshes wait for their answers until release is called.
func (h *HubSpot) HoldRefreshes() (release func()) {
	held := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = held
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.held = nil
		close(held)
	})
}

// Held returns how many refreshes wait for their answers.
func (h *HubSpot) Held() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting
}

// Tokens returns all codes and tokens that were ever given, to look for them where
// they must not be.
func (h *HubSpot) Tokens() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.given)
}
