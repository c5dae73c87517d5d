package hubspot

import (
	"bytes"
	"cmp"
	"encoding/json"
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

func bad(text string) error { return store.NewError(store.InvalidArgument, text) }

// ParseAction reads the body of an action call. Its error is an InvalidArgument that
// says what is wrong with the body. It does not set Expires.
func ParseAction(body []byte) (store.Action, error) {
	var callback, origin, workflow, inputs, portal, definition, execution, id, index member
	if body = bytes.TrimSpace(body); !json.Valid(body) || body[0] != '{' {
		return store.Action{}, bad("Invalid JSON body")
	}
	read(body, field{"callbackId", &callback}, field{"origin", &origin}, field{"context", &workflow}, field{"inputFields", &inputs})
	if !origin.object() || !workflow.object() || !inputs.object() {
		return store.Action{}, bad("Invalid JSON body")
	}
	name := callback.text()
	if callback.kind() != '"' || name == "" || !plain(name) {
		return store.Action{}, bad("callbackId must be a text of 1 to 255 bytes")
	}
	if origin.kind() == 0 {
		return store.Action{}, bad("origin is required")
	}
	read(origin, field{"portalId", &portal}, field{"actionDefinitionId", &definition}, field{"actionExecutionIndexIdentifier", &execution})
	read(execution, field{"actionExecutionIndex", &index})
	read(workflow, field{"workflowId", &id})
	a := store.Action{CallbackID: name, Queue: store.QueueKey{
		WorkflowID: cmp.Or(id.text(), "unknown"), Index: cmp.Or(index.text(), "0"),
	}}
	var ok bool
	if a.Queue.PortalID, ok = positive(portal.text()); !ok {
		return a, bad("origin.portalId must be a positive integer")
	}
	if a.Queue.ActionID, ok = positive(definition.text()); !ok {
		return a, bad("origin.actionDefinitionId must be a positive integer")
	}
	if !part(a.Queue.WorkflowID) || !part(a.Queue.Index) {
		return a, bad("context.workflowId and actionExecutionIndex must be short texts without colons")
	}
	return a, checkInputs(inputs)
}

// checkInputs checks the throttle's own input fields. They only inform the authors of
// workflows, because the rate comes from the configuration.
func checkInputs(inputs member) error {
	var most, time, period member
	read(inputs, field{"maxThroughPut", &most}, field{"time", &time}, field{"period", &period})
	if _, ok := positive(most.text()); most != nil && !ok {
		return bad("inputFields.maxThroughPut must be a positive integer")
	}
	if _, ok := positive(time.text()); time != nil && !ok {
		return bad("inputFields.time must be a positive integer")
	}
	if _, ok := store.ParseTimeUnit(period.text()); period != nil && !ok {
		return bad("inputFields.period must be seconds, minutes, hours or days")
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
