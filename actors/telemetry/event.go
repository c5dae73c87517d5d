package telemetry

import (
	"time"

	"github.com/rs/zerolog"

	"takt/actors/otp"
)

// SupervisorEvent is the data of supervisor:event: what happened in the tree,
// without stacks.
type SupervisorEvent struct {
	Event    string    `json:"event"`
	Path     string    `json:"path"`
	Reason   string    `json:"reason,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	Restarts int       `json:"restarts,omitempty"`
	At       time.Time `json:"at"`
	// LifetimeMS is how long a process that has ended had run.
	LifetimeMS int64 `json:"lifetime_ms,omitempty"`
	// Abnormal events need an operator's attention.
	Abnormal bool `json:"abnormal"`
}

func describe(e otp.Event) SupervisorEvent {
	s := SupervisorEvent{
		Event: e.Kind.String(), Path: e.Path, Detail: e.Detail, Restarts: e.Restarts,
		At: e.At, LifetimeMS: e.Lifetime.Milliseconds(), Abnormal: e.Abnormal(),
	}
	if e.Reason != nil {
		s.Reason = e.Reason.Error()
	}
	return s
}

// level is error for a defect, and warn for an outage or a restart.
func level(e otp.Event) zerolog.Level {
	switch e.Kind {
	case otp.EventRestarting, otp.EventSuspended:
		return zerolog.WarnLevel
	case otp.EventResumed, otp.EventReturned:
		return zerolog.InfoLevel
	default:
		if e.Abnormal() {
			return zerolog.ErrorLevel
		}
		return zerolog.DebugLevel
	}
}
