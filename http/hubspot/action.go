package hubspot

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"takt/store"
)

// maxText is the maximum length of a callback id and of each part of a queue's name,
// in bytes.
const maxText = 255

// Reply is the reply to an action call.
type Reply struct {
	OutputFields OutputFields `json:"outputFields"`
}

// OutputFields say what an execution does next.
type OutputFields struct {
	State State `json:"hs_execution_state"`
	// Expiration is an ISO 8601 duration, with Block.
	Expiration string `json:"hs_expiration_duration,omitempty"`
}

// State is the state of an execution after a reply.
type State string

// The states. Block holds the execution until it is completed or expires.
const (
	Block        State = "BLOCK"
	Success      State = "SUCCESS"
	FailContinue State = "FAIL_CONTINUE"
)

// scalar is a JSON number or string, as text, because HubSpot sends either one.
type scalar string

// UnmarshalJSON accepts null as "". raw is valid JSON; what most bodies have is taken as it
// is.
func (s *scalar) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		if bytes.IndexByte(raw, '\\') >= 0 || !utf8.Valid(raw) {
			return json.Unmarshal(raw, (*string)(s))
		}
		*s = scalar(raw[1 : len(raw)-1])
	case 'n':
		*s = ""
	case '{', '[', 't', 'f':
		return errors.New("neither a number nor a string")
	default:
		*s = scalar(raw)
	}
	return nil
}

// call holds the fields of an action call that are used here.
type call struct {
	CallbackID string `json:"callbackId"`
	Origin     *struct {
		PortalID   json.Number `json:"portalId"`
		Definition json.Number `json:"actionDefinitionId"`
		Execution  struct {
			Index scalar `json:"actionExecutionIndex"`
		} `json:"actionExecutionIndexIdentifier"`
	} `json:"origin"`
	Context struct {
		Workflow scalar `json:"workflowId"`
	} `json:"context"`
	Inputs map[string]json.RawMessage `json:"inputFields"`
}

func bad(text string) error { return store.NewError(store.InvalidArgument, text) }

// ParseAction reads the body of an action call. Its error is an InvalidArgument that
// says what is wrong with the body. It does not set Expires.
func ParseAction(body []byte) (store.Action, error) {
	var c call
	if err := json.Unmarshal(body, &c); err != nil {
		return store.Action{}, bad("Invalid JSON body")
	}
	if c.CallbackID == "" || !plain(c.CallbackID) {
		return store.Action{}, bad("callbackId must be a text of 1 to 255 bytes")
	}
	if c.Origin == nil {
		return store.Action{}, bad("origin is required")
	}
	a := store.Action{CallbackID: c.CallbackID, Queue: store.QueueKey{
		WorkflowID: cmp.Or(string(c.Context.Workflow), "unknown"), Index: cmp.Or(string(c.Origin.Execution.Index), "0"),
	}}
	var ok bool
	if a.Queue.PortalID, ok = positive(string(c.Origin.PortalID)); !ok {
		return a, bad("origin.portalId must be a positive integer")
	}
	if a.Queue.ActionID, ok = positive(string(c.Origin.Definition)); !ok {
		return a, bad("origin.actionDefinitionId must be a positive integer")
	}
	if !part(a.Queue.WorkflowID) || !part(a.Queue.Index) {
		return a, bad("context.workflowId and actionExecutionIndex must be short texts without colons")
	}
	return a, checkInputs(c.Inputs)
}

// checkInputs checks the throttle's own input fields. They only inform the authors of
// workflows, because the rate comes from the configuration.
func checkInputs(inputs map[string]json.RawMessage) error {
	for _, name := range []string{"maxThroughPut", "time"} {
		if raw, there := inputs[name]; there {
			var v scalar
			err := json.Unmarshal(raw, &v)
			if _, ok := positive(string(v)); err != nil || !ok {
				return bad("inputFields." + name + " must be a positive integer")
			}
		}
	}
	if raw, there := inputs["period"]; there {
		var v string
		err := json.Unmarshal(raw, &v)
		if _, ok := store.ParseTimeUnit(v); err != nil || !ok {
			return bad("inputFields.period must be seconds, minutes, hours or days")
		}
	}
	return nil
}

func positive(s string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return n, err == nil && n > 0
}

// plain reports whether the database and a log accept s unchanged.
func plain(s string) bool {
	return len(s) <= maxText && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func part(s string) bool { return plain(s) && !strings.ContainsAny(s, ":/") }

// Duration formats d as an ISO 8601 duration in whole seconds, at least one.
func Duration(d time.Duration) string {
	n := max(int64(d/time.Second), 1)
	var b strings.Builder
	b.WriteString("P")
	if days := n / 86400; days > 0 {
		b.WriteString(strconv.FormatInt(days, 10) + "D")
	}
	if n %= 86400; n > 0 {
		b.WriteString("T")
		for _, u := range []struct {
			of   int64
			name string
		}{{3600, "H"}, {60, "M"}, {1, "S"}} {
			if v := n / u.of; v > 0 {
				b.WriteString(strconv.FormatInt(v, 10) + u.name)
				n %= u.of
			}
		}
	}
	return b.String()
}
