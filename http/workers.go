package http

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// Limits of what a worker says of itself.
const (
	maxWorkerName   = 200      // characters
	maxCapabilities = 16 << 10 // bytes
	maxSlots        = 256
	maxPlatforms    = 16
)

// workers lets workers in and out, and shows and steers the fleet.
type workers struct {
	*shared
	store   Workers
	tokens  *store.WorkerTokens
	queue   Queue
	publish publish
	quota   *quota // of registrations, per remote address; nil: no limit
}

func newWorkers(s *shared, d Deps) *workers {
	return &workers{s, d.Workers, d.Tokens, d.Queue, d.Publish, newQuota("register", s.cfg.RegisterRate, time.Now())}
}

// serveRegister runs a registration, unless its address has sent too many.
func (h *workers) serveRegister(c echo.Context, r *route) error {
	if h.quota != nil {
		if err := h.quota.admit(c.Response().Header(), quotaAddr(remote(c.Request(), h.cfg.TrustedProxies))); err != nil {
			return err
		}
	}
	return h.levelled(c, r)
}

func (h *workers) register(ctx context.Context, c echo.Context) (any, error) {
	var body struct {
		ID           json.RawMessage `json:"id"`
		Name         json.RawMessage `json:"name"`
		Capabilities json.RawMessage `json:"capabilities"`
	}
	if _, err := readJSON(c, &body); err != nil {
		return nil, err
	}
	reg, err := registration(body.ID, body.Name, body.Capabilities)
	if err != nil {
		return nil, err
	}
	if reg.ID == "" {
		if reg.ID, err = newID(); err != nil {
			return nil, err
		}
	}
	if err := h.tokens.Ready(); err != nil { // before a worker is made that gets no token
		return nil, err
	}
	known, err := h.store.Register(ctx, reg)
	if err != nil {
		return nil, fmt.Errorf("registering worker %s: %w", reg.ID, err)
	}
	reply := api.Registered{
		ID: reg.ID, AccessToken: h.tokens.Issue(known.Token), Status: "registered",
		Message: "Worker registered", BaseImageID: h.cfg.BaseImageID,
	}
	if known.Again {
		reply.Status, reply.Message = "re-registered", "Worker re-registered"
	}
	h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{WorkerID: reg.ID, Status: known.Status, Draining: known.Draining})
	return reply, nil
}

func notRegistered(details string) error {
	return detailed{store.NewError(store.RegistrationFailed, "Registration failed"), details}
}

// registration checks what a worker says of itself. Errors have details.
func registration(id, name, capabilities json.RawMessage) (store.Registration, error) {
	var reg store.Registration
	if absent(name) {
		return reg, notRegistered("name is required")
	}
	if json.Unmarshal(name, &reg.Name) != nil || strings.TrimSpace(reg.Name) == "" {
		return reg, notRegistered("name must be a text that is not empty")
	}
	if reg.Name = text(reg.Name); utf8.RuneCountInString(reg.Name) > maxWorkerName {
		return reg, notRegistered(fmt.Sprintf("name must have at most %d characters", maxWorkerName))
	}
	if !absent(id) {
		if json.Unmarshal(id, &reg.ID) != nil || (reg.ID != "" && !store.ValidID(reg.ID)) {
			return reg, notRegistered(fmt.Sprintf("id must be 1 to %d characters of A-Z a-z 0-9 _ -", store.MaxIDLength))
		}
	}
	if absent(capabilities) {
		return reg, notRegistered("capabilities are required")
	}
	err := readCapabilities(capabilities, &reg)
	return reg, err
}

func absent(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }

// readCapabilities reads what matters here of a worker's capabilities. They are
// kept as they were sent.
func readCapabilities(raw json.RawMessage, reg *store.Registration) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return notRegistered("capabilities must be an object")
	}
	if len(raw) > maxCapabilities {
		return notRegistered(fmt.Sprintf("capabilities must have at most %d bytes", maxCapabilities))
	}
	// The database takes neither of these in JSON.
	if !utf8.Valid(raw) || bytes.Contains(raw, []byte(`\u0000`)) {
		return notRegistered("capabilities must be UTF-8 text without NUL")
	}
	reg.Capabilities, reg.Slots = raw, 1
	if v := members["maxConcurrentBuilds"]; !absent(v) {
		var n float64
		if json.Unmarshal(v, &n) != nil || n < 1 || n != float64(int64(n)) {
			return notRegistered("maxConcurrentBuilds must be a whole number of at least 1")
		}
		reg.Slots = int(min(n, maxSlots))
	}
	if v := members["platforms"]; !absent(v) {
		return readPlatforms(v, reg)
	}
	return nil
}

// readPlatforms reads a list of platforms, or one. Unknown ones are kept: a
// worker that builds nothing known must not be taken for one that builds all.
func readPlatforms(raw json.RawMessage, reg *store.Registration) error {
	var names []string
	var one string
	if json.Unmarshal(raw, &one) == nil {
		names = []string{one}
	} else if json.Unmarshal(raw, &names) != nil || len(names) > maxPlatforms {
		return notRegistered(fmt.Sprintf("platforms must be a list of at most %d texts", maxPlatforms))
	}
	for _, n := range names {
		n = strings.ToLower(strings.TrimSpace(n))
		if !store.ValidID(n) {
			n = "unknown"
		}
		reg.Platforms = append(reg.Platforms, store.Platform(n))
	}
	return nil
}

func (h *workers) unregister(ctx context.Context, c echo.Context) (any, error) {
	token := header(c.Request().Header, keyWorkerToken)
	if token == "" {
		return nil, store.NewError(store.Unauthorized, "Missing X-Worker-Token header")
	}
	checked, err := h.tokens.Check(token)
	if err != nil {
		return nil, err
	}
	gone, err := h.store.Unregister(ctx, checked)
	return h.left(gone, false, err)
}

// unregisterID handles POST /api/workers/:id/unregister, which the oldest workers
// send.
func (h *workers) unregisterID(ctx context.Context, id string) (any, error) {
	gone, err := h.store.UnregisterID(ctx, id)
	return h.left(gone, false, err)
}

func (h *workers) delete(ctx context.Context, id string) (any, error) {
	gone, err := h.store.Delete(ctx, id)
	gone.WorkerID = id
	return h.left(gone, true, err)
}

// left says that a worker is gone and that its builds are pending again.
func (h *workers) left(gone store.Departure, deleted bool, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if len(gone.Requeued) > 0 {
		h.queue.Requeued(gone.Requeued)
	}
	for _, b := range gone.Requeued {
		h.publish(store.TopicBuildUpdated, store.BuildUpdate{BuildID: b.ID, State: store.Pending, Platform: b.Platform})
	}
	h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{WorkerID: gone.WorkerID, Status: store.Offline, Deleted: deleted})
	reply := api.Unregistered{Success: true, BuildsReassigned: len(gone.Requeued), Message: "Worker unregistered"}
	if deleted {
		reply.Message = "Worker deleted"
	}
	return reply, nil
}
