package controllertest

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"takt/http/api"
	"takt/store"
)

// These are the keys of every test controller.
const (
	APIKey   = "controllertest-api-key"
	AdminKey = "controllertest-admin-key"
)

// Build is a build in the controller's memory.
type Build struct {
	ID, Platform, Token string
	Require, Prefer     string
	Submitted           *store.Inputs // nil if the controller does not know them, see Earlier
	State               store.BuildState
	WorkerID            string
	Attempt             int
	Source, Certs       []byte
	Result              []byte
	ErrorMessage        string
	CancelledFor        string // the reason that was given
	RetryOf             string
	Fault               store.Fault // as the worker reported it
	Inputs              *api.HeldInputs
	Ended               map[string]string // exit_code, signal and timed_out, as the worker reported them
	Logs                []api.LogMessage
	Heartbeats          int
	Telemetry           []api.Telemetry
	Uploads             int // how often the end of the build was reported
	Priority            int
	Labels              store.Labels
	Fields              map[string]string // of the form that submitted it
}

// Worker is a worker in the controller's memory.
type Worker struct {
	ID, Name      string
	Platforms     []string
	Slots         int
	Capabilities  api.Capabilities
	Registrations int
	Gone          bool // unregistered
	Draining      bool
	Quarantine    *api.Quarantine
	Suspect       *api.Suspect
	Report        api.PostDiagnostic // the last report
	token, before string
}

// Intercept gets each request first and reports whether it has answered it. It runs
// outside the controller's lock.
type Intercept func(w http.ResponseWriter, r *http.Request) bool

// Controller is a build controller in memory.
type Controller struct {
	URL string

	mu        sync.Mutex
	changed   chan struct{} // closed at each change
	counted   chan struct{} // closed when polls changes; only for Await
	builds    map[string]*Build
	order     []string
	workers   map[string]*Worker
	intercept Intercept
	requests  map[string]int
	keys      map[string]string // builds by Idempotency-Key
	serial    int
	polls     int
	streams   atomic.Bool
	image     string // the base image that workers are told
	earlier   bool   // see Earlier
}

// Earlier makes the controller one of takt 0.1.0, which gives builds only to polls, one to each.
func (c *Controller) Earlier() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.earlier = true
}

// Name sets the base image that registrations and jobs name.
func (c *Controller) Name(image string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.image = image
}

// Stream makes the controller stream logs to clients that ask for a stream.
func (c *Controller) Stream() { c.streams.Store(true) }

// Start returns a controller that listens on its own port until the test ends.
func Start(tb testing.TB) *Controller {
	tb.Helper()
	c := &Controller{
		changed: make(chan struct{}), counted: make(chan struct{}), builds: map[string]*Build{},
		workers: map[string]*Worker{}, requests: map[string]int{}, keys: map[string]string{},
	}
	server := httptest.NewServer(c)
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	c.URL = server.URL
	return c
}

// Intercept sets the function that gets each request first; nil removes it.
func (c *Controller) Intercept(f Intercept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.intercept = f
}

// Submit queues a build and returns its id.
func (c *Controller) Submit(platform string, source, certs []byte) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.submit(platform, source, certs).ID
}

func (c *Controller) submit(platform string, source, certs []byte) *Build {
	c.serial++
	b := &Build{
		ID: fmt.Sprintf("build-%d", c.serial), Platform: platform, State: store.Pending,
		Token: store.NewBuildToken(), Source: source, Certs: certs,
		Logs: []api.LogMessage{{Level: "info", Message: "Build submitted"}},
	}
	c.builds[b.ID] = b
	c.order = append(c.order, b.ID)
	c.touch()
	return b
}

// Build returns a copy of a build, or a zero Build if there is none.
func (c *Controller) Build(id string) Build {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.copyOf(id)
}

func (c *Controller) copyOf(id string) Build {
	b, ok := c.builds[id]
	if !ok {
		return Build{}
	}
	got := *b
	got.Logs, got.Telemetry = slices.Clone(b.Logs), slices.Clone(b.Telemetry)
	return got
}

// Workers returns copies of all workers.
func (c *Controller) Workers() []Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Worker
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		all = append(all, *c.workers[id])
	}
	return all
}

// Requests returns how many requests for "METHOD /path" have arrived, including
// intercepted ones.
func (c *Controller) Requests(route string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests[route]
}

// Polls returns how many polls are open.
func (c *Controller) Polls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.polls
}

// Edit changes a build as something other than its worker would.
func (c *Controller) Edit(id string, f func(*Build)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.builds[id])
	c.touch()
}

// Expire makes every worker token invalid. The next heartbeat of a worker that has a build
// renews its token.
func (c *Controller) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.workers {
		w.token, w.before = "", ""
	}
}

// Await waits until ok returns true. It calls ok after each change and each request, and
// fails the test after a minute.
func (c *Controller) Await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		c.mu.Lock()
		changed, counted := c.changed, c.counted
		c.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-counted:
		case <-limit.C:
			tb.Fatalf("waited in vain: %s", what)
		}
	}
}

// AwaitState waits until a build is in a state, and returns it.
func (c *Controller) AwaitState(tb testing.TB, id string, state store.BuildState) Build {
	tb.Helper()
	c.Await(tb, id+" is "+string(state), func() bool { return c.Build(id).State == state })
	return c.Build(id)
}

// touch wakes all waiting goroutines. The caller holds the lock.
func (c *Controller) touch() {
	close(c.changed)
	c.changed = make(chan struct{})
}
