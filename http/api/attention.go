package api

import (
	"time"

	"takt/store"
)

// NeedsAttention is a problem that needs attention.
type NeedsAttention struct {
	// Kind is what kind of problem it is, such as offline; Subjects are what has it, such as ids
	// of workers (of very many some). Acknowledgements name both.
	Kind     string   `json:"kind"`
	Subjects []string `json:"subjects"`
	Severity string   `json:"severity" enum:"bad,warn"`
	// Text is what is wrong, Todo what to do about it, and Command the command that begins with it.
	Text    string  `json:"text"`
	Todo    string  `json:"todo"`
	Command string  `json:"command,omitempty"`
	Since   *string `json:"since,omitempty" schema:"Time"`
	// Acknowledged is there while operators know of it.
	Acknowledged *Acknowledged `json:"acknowledged,omitempty"`
}

// Acknowledged says who knows of a problem, and until when it needs no attention.
type Acknowledged struct {
	By     string `json:"by"`
	Reason string `json:"reason"`
	At     string `json:"at" schema:"Time"`
	Until  string `json:"until" schema:"Time"`
}

// Attention answers GET /api/attention: the most severe problems first, those that are acknowledged
// last.
type Attention struct {
	Problems []NeedsAttention `json:"problems"`
}

// Acknowledge is the body of POST /admin/attention/acknowledge.
type Acknowledge struct {
	Kind string `json:"kind" min:"1" max:"100"`
	// Subjects are those of the problem; all that it has now without any.
	Subjects []string `json:"subjects,omitempty" max:"1000"`
	// For is how long it needs no attention, such as 8h or 7d, up to 30d.
	For string `json:"for"`
	// Reason is shown beside the problem, and goes into the audit.
	Reason string `json:"reason" min:"1" max:"1000"`
}

// Lasts returns For.
func (a *Acknowledge) Lasts() (time.Duration, error) {
	d, err := ParseDays(a.For)
	if err != nil || d < time.Minute || d > store.MaxAcknowledgement {
		return 0, invalid("for must be a time from 1m to 30d, such as 8h")
	}
	return d, nil
}

// Check implements [Checker].
func (a *Acknowledge) Check() error {
	if _, err := a.Lasts(); err != nil {
		return err
	}
	return needReason(&a.Reason)
}

// Recall is the body of POST /admin/attention/recall.
type Recall struct {
	Kind string `json:"kind" min:"1" max:"100"`
	// Subjects are those whose acknowledgements end; all of the kind without any.
	Subjects []string `json:"subjects,omitempty" max:"1000"`
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// Check implements [Checker].
func (r *Recall) Check() error { return cleanReason(&r.Reason) }

// ShowAttention is GET /api/attention.
var ShowAttention = declare[None, Attention](operators, APIKey, scopeRead, Ops, "GET /api/attention", Route{
	ID: "showAttention", Strict: true, AdminToo: true, Summary: "Show what needs attention",
	Text: "Only operators see problems of keys and of notices.",
	Says: "At most two seconds old. It answers while the database is unavailable, too.",
})

// AcknowledgeProblem is POST /admin/attention/acknowledge.
var AcknowledgeProblem = declare[Acknowledge, Attention](operators, AdminKey, scopeOperate, Ops, "POST /admin/attention/acknowledge", Route{
	ID: "acknowledgeProblem", Strict: true, Errors: []int{404, 409}, Summary: "Acknowledge a problem, which then needs no attention for a while",
	Text: "Pages show it in grey, count it no longer, and no notice tells of it.",
	Says: "What needs attention now.",
})

// RecallAcknowledgement is POST /admin/attention/recall.
var RecallAcknowledgement = declare[Recall, Attention](operators, AdminKey, scopeOperate, Ops, "POST /admin/attention/recall", Route{
	ID: "recallAcknowledgement", Strict: true, Errors: []int{404}, Summary: "End the acknowledgement of a problem",
	Says: "What needs attention now.",
})
