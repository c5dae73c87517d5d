package http

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
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

// handleWorkerRegister handles POST /api/workers/register.
func (s *Server) handleWorkerRegister(ctx context.Context, c echo.Context) error {
	var body struct {
		ID           json.RawMessage `json:"id"`
		Name         json.RawMessage `json:"name"`
		Capabilities json.RawMessage `json:"capabilities"`
	}
	if _, err := s.readJSON(c, &body); err != nil {
		return err
	}
	reg, err := registration(body.ID, body.Name, body.Capabilities)
	if err != nil {
		return err
	}
	if reg.ID == "" {
		if reg.ID, err = newID(); err != nil {
			return err
		}
	}
	if err := s.deps.Tokens.Ready(); err != nil { // before a worker is made that gets no token
		return err
	}
	known, err := s.deps.Workers.Register(ctx, reg)
	if err != nil {
		return fmt.Errorf("registering worker %s: %w", reg.ID, err)
	}
	reply := api.Registered{
		ID: reg.ID, AccessToken: s.deps.Tokens.Issue(known.Token), Status: "registered",
		Message: "Worker registered", BaseImageID: s.cfg.BaseImageID,
	}
	if known.Again {
		reply.Status, reply.Message = "re-registered", "Worker re-registered"
	}
	s.deps.Announce.WorkerUpdated(store.WorkerUpdate{WorkerID: reg.ID, Status: known.Status, Draining: known.Draining})
	return s.reply(c, http.StatusOK, reply)
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
	return reg, readCapabilities(capabilities, &reg)
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

// handleWorkerUnregister handles POST /api/workers/unregister.
func (s *Server) handleWorkerUnregister(ctx context.Context, c echo.Context) error {
	token := header(c.Request().Header, keyWorkerToken)
	if token == "" {
		return store.NewError(store.Unauthorized, "Missing X-Worker-Token header")
	}
	checked, err := s.deps.Tokens.Check(token)
	if err != nil {
		return err
	}
	gone, err := s.deps.Workers.Unregister(ctx, checked)
	return s.unregistered(c, gone, err)
}

// handleWorkerUnregisterID handles POST /api/workers/:id/unregister, which the
// oldest workers send.
func (s *Server) handleWorkerUnregisterID(ctx context.Context, c echo.Context) error {
	id := c.Param("id")
	if !store.ValidID(id) {
		return workerNotFound()
	}
	gone, err := s.deps.Workers.UnregisterID(ctx, id)
	return s.unregistered(c, gone, err)
}

func (s *Server) unregistered(c echo.Context, gone store.Departure, err error) error {
	if err != nil {
		return err
	}
	s.requeued(gone.Requeued)
	s.deps.Announce.WorkerUpdated(store.WorkerUpdate{WorkerID: gone.WorkerID, Status: store.Offline})
	return s.reply(c, http.StatusOK, api.Unregistered{
		Success: true, BuildsReassigned: len(gone.Requeued), Message: "Worker unregistered",
	})
}

// requeued says that builds are pending again.
func (s *Server) requeued(refs []store.BuildRef) {
	if len(refs) > 0 {
		s.deps.Queue.Requeued(refs)
	}
	for _, b := range refs {
		s.deps.Announce.BuildUpdated(store.BuildUpdate{BuildID: b.ID, State: store.Pending, Platform: b.Platform})
	}
}

func workerNotFound() error { return store.NewError(store.NotFound, "Worker not found") }
