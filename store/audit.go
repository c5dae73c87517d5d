package store

import (
	"encoding/json"
	"time"
)

// AuditEntry is one thing that an operator did.
type AuditEntry struct {
	ID int64
	// At is when it began; the zero time means now, by the database's clock.
	At time.Time
	// Actor is who, Action what, Target to what, Reason why.
	Actor, Action, Target, Reason string
	// Detail is a JSON object with whatever else the action has; nil for none.
	Detail json.RawMessage
	// Outcome is how it ended; "" while that is not known.
	Outcome string
}
