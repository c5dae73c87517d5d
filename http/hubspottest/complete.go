package hubspottest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// input is one execution in a call to complete.
type input struct {
	CallbackID   string            `json:"callbackId"`
	OutputFields map[string]string `json:"outputFields"`
}

// complete handles a call to complete executions.
func (h *HubSpot) complete(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Inputs []input `json:"inputs"`
	}
	malformed := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<20)).Decode(&body)
	inputs := body.Inputs
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	h.mu.Lock()
	id, p := h.owner(token)
	if p == nil {
		h.mu.Unlock()
		refuse(w, http.StatusUnauthorized, "The OAuth token used to make this call expired"+h.about(token), "category", "EXPIRED_AUTHENTICATION")
		return
	}
	p.total++
	if !h.admit(w, p) {
		h.mu.Unlock()
		refuse(w, http.StatusTooManyRequests, "You have reached your ten_secondly_rolling limit.",
			"errorType", "RATE_LIMIT", "policyName", "TEN_SECONDLY_ROLLING")
		return
	}
	fault := p.fault(inputs)
	problem := check(inputs, malformed)
	carry := problem == "" && (fault == nil || fault.After || fault.Status == http.StatusNoContent)
	if carry && (fault == nil || fault.Delay == 0) {
		h.note(id, inputs)
	}
	h.mu.Unlock()
	if fault != nil && fault.Delay > 0 {
		if !pause(r, fault.Delay) && !fault.After {
			return // the client has disconnected
		}
		if carry {
			h.mu.Lock()
			h.note(id, inputs)
			h.mu.Unlock()
		}
	}
	switch {
	case problem != "" && fault == nil:
		refuse(w, http.StatusBadRequest, problem, "category", "VALIDATION_ERROR")
	case fault == nil || fault.Status == http.StatusNoContent:
		w.WriteHeader(http.StatusNoContent)
	case fault.Status == 0:
		panic(http.ErrAbortHandler) // net/http cuts the connection
	default:
		for k, v := range fault.Header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(fault.Status)
		_, _ = w.Write([]byte(fault.Body)) // an error means that the client has disconnected
	}
}

// pause waits for d and reports whether the client stayed connected.
func pause(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// admit enforces the rolling limit. Refused calls do not count.
func (h *HubSpot) admit(w http.ResponseWriter, p *portal) bool {
	if h.cfg.RollingLimit < 0 {
		return true
	}
	now := time.Now()
	p.calls = slices.DeleteFunc(p.calls, func(at time.Time) bool { return now.Sub(at) >= h.cfg.RollingWindow })
	left := h.cfg.RollingLimit - len(p.calls)
	if left > 0 {
		p.calls = append(p.calls, now)
		left--
	} else {
		w.Header().Set("Retry-After", strconv.FormatFloat(max(h.cfg.RollingWindow-now.Sub(p.calls[0]), 0).Seconds(), 'f', 3, 64))
		left = -1
	}
	w.Header().Set("X-HubSpot-RateLimit-Max", strconv.Itoa(h.cfg.RollingLimit))
	w.Header().Set("X-HubSpot-RateLimit-Remaining", strconv.Itoa(max(left, 0)))
	w.Header().Set("X-HubSpot-RateLimit-Interval-Milliseconds", strconv.FormatInt(h.cfg.RollingWindow.Milliseconds(), 10))
	return left >= 0
}

// fault returns the fault for this call, or nil.
func (p *portal) fault(inputs []input) *Fault {
	for i, f := range p.faults {
		if f.Only != "" && !slices.ContainsFunc(inputs, func(in input) bool { return in.CallbackID == f.Only }) {
			continue
		}
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				p.faults = slices.Delete(p.faults, i, i+1)
			}
		}
		return f
	}
	return nil
}

// check returns what is wrong with a call, or "" if nothing is.
func check(inputs []input, malformed error) string {
	switch {
	case malformed != nil:
		return "the body is not valid JSON"
	case len(inputs) == 0:
		return "inputs must not be empty"
	case len(inputs) > 100:
		return fmt.Sprintf("%d inputs are more than 100", len(inputs))
	}
	seen := map[string]bool{}
	for _, in := range inputs {
		state := in.OutputFields["hs_execution_state"]
		switch {
		case in.CallbackID == "":
			return "callbackId must not be empty"
		case seen[in.CallbackID]:
			return "callbackId " + in.CallbackID + " is there twice"
		case state != "SUCCESS" && state != "FAIL_CONTINUE":
			return "hs_execution_state must be SUCCESS or FAIL_CONTINUE"
		}
		seen[in.CallbackID] = true
	}
	return ""
}

// note adds completions to the record.
func (h *HubSpot) note(portal int64, inputs []input) {
	now := time.Now()
	for _, in := range inputs {
		h.record = append(h.record, Completion{portal, in.CallbackID, in.OutputFields["hs_execution_state"], now})
		h.begun[in.CallbackID]++
	}
}
