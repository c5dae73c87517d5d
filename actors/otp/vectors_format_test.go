package otp_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

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

// known are the words of the format, by the key under which they stand. Invalid flags and
// restart types are part of the format.
func known() map[string][]string {
	return map[string][]string{
		"ev": {"init", "start", "init_failed", "init_ignore", "terminate", "exit"},
		"op": {
			"boot", "crash", "exit_normal", "exit_shutdown", "kill", "terminate_child", "restart_child",
			"delete_child", "start_child", "which_children", "count_children", "stop", "sleep",
		},
		"do":   {"error", "ignore", "immediate", "slow", "hang"},
		"type": {"worker", "supervisor"},
	}
}

// unknown returns an error for a word that the runner does not know: it must not pass for
// want of understanding.
func unknown(value any) error {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			if err := unknown(item); err != nil {
				return err
			}
		}
	case map[string]any:
		for key, item := range v {
			word, ok := item.(string)
			if words := known()[key]; ok && words != nil && !slices.Contains(words, word) {
				return fmt.Errorf("unknown %s %q", key, word)
			}
			if err := unknown(item); err != nil {
				return err
			}
		}
	}
	return nil
}

// parse reads a scenario. A field that the runner does not know is an error.
func parse(text []byte) (*scenario, error) {
	var sc scenario
	var all any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := errors.Join(dec.Decode(&sc), json.Unmarshal(text, &all)); err != nil {
		return nil, err
	}
	if sc.Format != 1 || len(sc.Trace) != len(sc.Steps)+1 {
		return nil, fmt.Errorf("malformed scenario: format %d, %d steps, %d entries", sc.Format, len(sc.Steps), len(sc.Trace))
	}
	for i, st := range sc.Steps {
		if op := sc.Trace[i+1].Op; op != st.Op {
			return nil, fmt.Errorf("step %d: the trace is about %q, the step is %q", i+1, op, st.Op)
		}
	}
	return &sc, unknown(all)
}
