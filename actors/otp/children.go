package otp

import (
	"cmp"
	"context"
	"slices"
)

// ChildState is what a supervisor says about a child's process.
type ChildState uint8

// The states: OTP returns a pid, restarting or undefined.
const (
	Running ChildState = iota
	Restarting
	Undefined
)

// ChildInfo is a row of [WhichChildren].
type ChildInfo struct {
	ID    string // of instances: the template's
	Type  ChildType
	State ChildState
	Proc  *Proc // nil unless Running
}

// Counts is the result of [CountChildren].
type Counts struct {
	Specs       int // specifications; a Dynamic supervisor has one
	Active      int // running processes
	Supervisors int // children that are supervisors, running or not
	Workers     int // all others
}

// WhichChildren returns the children, last started first; instances of a
// Dynamic supervisor likewise, tasks included.
func WhichChildren(ctx context.Context, sup Target) ([]ChildInfo, error) {
	return ask[[]ChildInfo](ctx, sup, whichChildren{})
}

type whichChildren struct{}

func (whichChildren) handle(s *supervisor) (any, error) {
	var infos []ChildInfo
	for _, row := range slices.Backward(s.rows) {
		infos = append(infos, row.info())
	}
	for _, row := range s.instances {
		infos = append(infos, row.info())
	}
	if s.dynamic() {
		for _, p := range s.linked() {
			if p.cheap {
				infos = append(infos, (&child{spec: p.spec, proc: p}).info())
			}
		}
		slices.SortFunc(infos, func(a, b ChildInfo) int { return cmp.Compare(b.Proc.serial(), a.Proc.serial()) })
	}
	return infos, nil
}

func (c *child) info() ChildInfo {
	i := ChildInfo{ID: c.spec.ID, Type: c.spec.childType()}
	switch {
	case c.restarting:
		i.State = Restarting
	case c.proc == nil:
		i.State = Undefined
	default:
		i.Proc = c.proc
	}
	return i
}

// serial orders processes by age.
func (p *Proc) serial() uint64 {
	if p == nil {
		return 0
	}
	return p.id
}

// CountChildren counts the children.
func CountChildren(ctx context.Context, sup Target) (Counts, error) {
	return ask[Counts](ctx, sup, countChildren{})
}

type countChildren struct{}

func (countChildren) handle(s *supervisor) (any, error) {
	var n Counts
	count := func(c *child) {
		if c.spec.childType() == Supervisor {
			n.Supervisors++
		} else {
			n.Workers++
		}
	}
	for _, row := range s.rows {
		count(row)
		n.Specs++
		if row.alive() && row.proc.Alive() {
			n.Active++
		}
	}
	for _, row := range s.instances {
		count(row)
		if row.alive() {
			n.Active++
		}
	}
	if s.dynamic() {
		s.mu.Lock()
		n.Specs, n.Active, n.Workers = 1, n.Active+s.tasks, n.Workers+s.tasks
		s.mu.Unlock()
	}
	return n, nil
}
