package otp_test

import (
	"encoding/json"
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

// check refuses what the runner does not know: it must not pass for want of
// understanding. Invalid flags and restart types are part of the format.
func (sc *scenario) check() error {
	if sc.Format != 1 || len(sc.Trace) != len(sc.Steps)+1 {
		return fmt.Errorf("malformed scenario: format %d, %d steps, %d entries", sc.Format, len(sc.Steps), len(sc.Trace))
	}
	for i, st := range sc.Steps {
		if op := sc.Trace[i+1].Op; op != st.Op {
			return fmt.Errorf("step %d: the trace is about %q, the step is %q", i+1, op, st.Op)
		}
		if err := st.check(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	for _, e := range sc.Trace {
		for _, ev := range slices.Concat(e.Events, e.Async) {
			if err := oneOf("ev", ev.Ev, "init", "start", "init_failed", "init_ignore", "terminate", "exit"); err != nil {
				return err
			}
		}
	}
	return sc.Tree.check()
}

func (st step) check() error {
	err := oneOf("op", st.Op, "crash", "exit_normal", "exit_shutdown", "kill", "terminate_child", "restart_child",
		"delete_child", "start_child", "which_children", "count_children", "stop", "sleep")
	if err == nil && st.Spec != nil {
		err = st.Spec.check()
	}
	if err == nil && st.Args != nil {
		err = start{}.with(st.Args).check()
	}
	for _, item := range st.During {
		if err == nil {
			err = item.check()
		}
	}
	return err
}

func (sp *spec) check() error {
	if err := oneOf("type", sp.Type, "", "worker", "supervisor"); err != nil {
		return err
	}
	if _, err := shutdownTime(sp); err != nil {
		return err
	}
	return sp.Start.check()
}

func (s start) check() error {
	for _, r := range s.Init {
		if err := oneOf("init do", r.Do, "error", "ignore"); err != nil {
			return err
		}
	}
	if s.Terminate != nil {
		if err := oneOf("terminate do", s.Terminate.Do, "", "immediate", "slow", "hang"); err != nil {
			return err
		}
	}
	for i := range s.Children {
		if err := s.Children[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func oneOf(what, value string, known ...string) error {
	if !slices.Contains(known, value) {
		return fmt.Errorf("unknown %s %q", what, value)
	}
	return nil
}
