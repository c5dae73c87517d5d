package otp_test

import "encoding/json"

// The types of the golden traces, format 1. See testdata/vectors.

type scenario struct {
	Format            int
	Name, Description string
	OTP               string
	Tags              []string
	Tree              start
	Steps             []step
	Trace             []entry
}

type flags struct {
	Strategy          *string
	Intensity, Period *int
	AutoShutdown      *string `json:"auto_shutdown"`
}

type rule struct {
	From   int
	To     *int
	Do     string
	Reason string
}

type terminate struct {
	Do   string
	Ms   int
	Exit string
}

// start is a supervisor node or a worker's behaviour.
type start struct {
	Flags     flags
	Children  []spec
	Init      []rule
	TrapExit  *bool `json:"trap_exit"`
	Terminate *terminate
}

type spec struct {
	ID, Restart, Type string
	Significant       bool
	Shutdown          any // nil, float64 (ms), "infinity", "brutal_kill"
	Start             start
}

// args of an instance; nil: keep the template's.
type args struct {
	Key       string
	TrapExit  *bool `json:"trap_exit"`
	Init      *[]rule
	Terminate *terminate
}

type step struct {
	Op, Path, Reason, Term, Sup, ID string

	PidOf  string `json:"pid_of"`
	Spec   *spec
	Args   *args
	Ms     int
	Gate   string
	During []step
}

type event struct {
	Ev     string  `json:"ev"`
	Path   string  `json:"path"`
	N      int     `json:"n"`
	Reason *string `json:"reason,omitempty"`
}

type entry struct {
	Step          int
	Op            string
	Result        json.RawMessage
	During        []json.RawMessage
	Events, Async []event
	Reports       json.RawMessage
	After         json.RawMessage
}

// with returns the template's start with the fields that the arguments replace.
func (s start) with(a *args) start {
	if a.TrapExit != nil {
		s.TrapExit = a.TrapExit
	}
	if a.Init != nil {
		s.Init = *a.Init
	}
	if a.Terminate != nil {
		s.Terminate = a.Terminate
	}
	return s
}

// ruleFor returns what the n-th start does, nil if it just succeeds.
func (s start) ruleFor(n int) *rule {
	for i, r := range s.Init {
		if r.From <= n && (r.To == nil || n <= *r.To) {
			return &s.Init[i]
		}
	}
	return nil
}
