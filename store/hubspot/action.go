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

// member is a value in a JSON text that is known to be valid; nil if it is absent.
// Reading few members this way takes a third of json.Unmarshal's time, which was a quarter
// of what a webhook costs takt.
type member []byte

// kind returns the first byte of the value, 0 for null and for an absent one.
func (m member) kind() byte {
	if len(m) == 0 || m[0] == 'n' {
		return 0
	}
	return m[0]
}

// object reports whether m is an object, or null, or absent.
func (m member) object() bool { return m.kind() == '{' || m.kind() == 0 }

// text returns a number or a string as text, because HubSpot sends either one. It returns ""
// for anything else.
func (m member) text() string {
	switch m.kind() {
	case 0, '{', '[', 't', 'f':
		return ""
	case '"':
		return unquote(m)
	}
	return string(m)
}

func unquote(quoted []byte) (s string) {
	if bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted) {
		return string(quoted[1 : len(quoted)-1])
	}
	_ = json.Unmarshal(quoted, &s) // it is valid
	return s
}

// field names a member and where to put it.
type field struct {
	name string
	to   *member
}

// read puts members of an object into fields. If a name is there twice, the last one
// counts. Anything but an object has no members.
func read(object member, fields ...field) {
	if object.kind() != '{' {
		return
	}
	for i := skip(object, 1); object[i] != '}'; i = skip(object, i) {
		if object[i] == ',' {
			i = skip(object, i+1)
		}
		end := after(object, i)
		name := object[i+1 : end-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			name = []byte(unquote(object[i:end]))
		}
		i = skip(object, skip(object, end)+1) // behind the colon
		end = after(object, i)
		for _, f := range fields {
			if f.name == string(name) {
				*f.to = object[i:end:end]
			}
		}
		i = end
	}
}

// skip returns the index of the next byte from i on that is no white space.
func skip(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r' {
		i++
	}
	return i
}

// after returns the index behind the value that begins at i.
func after(b []byte, i int) int {
	for depth := 0; ; i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			if depth > 0 {
				continue
			}
			for strings.IndexByte(",}] \t\r\n", b[i]) < 0 { // a number or a word
				i++
			}
			return i
		}
		if depth == 0 {
			return i + 1
		}
	}
}
