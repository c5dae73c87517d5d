package otp

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Status is the state of a node, for operators.
type Status string

// The states of a node.
const (
	StatusRunning    Status = "running"
	StatusStarting   Status = "starting"
	StatusRestarting Status = "restarting"
	StatusSuspended  Status = "suspended"
	StatusStopping   Status = "stopping"
	StatusTerminated Status = "terminated"
)

// Node is one child, or a root, of a supervision tree at one moment.
type Node struct {
	ID         string
	Path       string
	Name       string // registered name, empty if none
	Type       ChildType
	Strategy   Strategy // of supervisors
	Restart    Restart
	Status     Status
	Detail     string // why it is suspended
	Restarts   int    // since its supervisor was started
	LastExit   string // reason of the last end, empty if none
	LastExitAt time.Time
	StartedAt  time.Time     // of the running incarnation
	Mailbox    int           // messages that wait
	Messages   int64         // handled by the running incarnation
	Busy       time.Duration // that they took
	ChildCount int           // running children
	Leaked     int           // abandoned processes of this path that still run; a Dynamic supervisor also counts its tasks
	Children   []Node        // in start order; of Dynamic supervisors only if asked
}

// Tree returns the running roots and everything below them. It sends no messages, so a
// busy supervisor does not delay it. Children of Dynamic supervisors are listed if
// instances is set, and only counted otherwise.
func (s *System) Tree(instances bool) []Node {
	s.mu.Lock()
	tops := slices.Clone(s.tops)
	leaks := make(map[string]int, len(s.leaked))
	for p := range s.leaked {
		if p.task != nil {
			p = p.parent.p // the task has no node any more
		}
		leaks[p.Path()]++
	}
	s.mu.Unlock()
	nodes := make([]Node, 0, len(tops))
	for _, p := range tops {
		n := p.node(instances, leaks)
		n.ID = p.label
		nodes = append(nodes, n)
	}
	return nodes
}

// node describes a process.
func (p *Proc) node(instances bool, leaks map[string]int) Node {
	path := p.Path()
	n := Node{
		Path: path, Name: p.name, Type: p.spec.childType(),
		StartedAt: p.born, Mailbox: p.Mailbox(), Leaked: leaks[path],
	}
	n.Status, n.Detail = p.status()
	n.Messages, n.Busy = p.Handled()
	if p.task != nil {
		n.ID = p.task.String()
	}
	if p.supervisor != nil {
		p.supervisor.fill(&n, instances, leaks)
	}
	return n
}

// status returns the state of a process.
func (p *Proc) status() (Status, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.phase == dead:
		return StatusTerminated, ""
	case p.phase == ending:
		return StatusStopping, ""
	case p.server != nil && p.server.detail != "":
		return StatusSuspended, p.server.detail
	case p.phase == starting:
		return StatusStarting, ""
	default:
		return StatusRunning, ""
	}
}

// fill adds a supervisor's children to its node.
func (s *supervisor) fill(n *Node, instances bool, leaks map[string]int) {
	s.mu.Lock()
	n.Strategy = s.spec.Strategy
	if !instances {
		n.ChildCount = len(s.instances) + s.tasks
	}
	s.mu.Unlock()
	for _, row := range s.table(instances) {
		c := s.childNode(&row, instances, leaks)
		// The node's status counts, not the row, because the supervisor gets the
		// message of a child's end a moment later.
		if c.Status != StatusTerminated && c.Status != StatusRestarting {
			n.ChildCount++
		}
		n.Children = append(n.Children, c)
	}
}

// table returns copies of the rows, in start order, with those of instances and tasks
// if instances is set.
func (s *supervisor) table(instances bool) []child {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := make([]child, 0, len(s.rows))
	for _, row := range s.rows {
		rows = append(rows, *row)
	}
	if !instances || !s.dynamic() {
		return rows
	}
	for _, row := range s.instances {
		rows = append(rows, *row)
	}
	for p := range s.links {
		if p.task != nil {
			rows = append(rows, child{spec: p.spec, proc: p})
		}
	}
	slices.SortFunc(rows, func(a, b child) int { return cmp.Compare(a.proc.id, b.proc.id) })
	return rows
}

// childNode describes one row.
func (s *supervisor) childNode(row *child, instances bool, leaks map[string]int) Node {
	path := s.p.Path() + "/" + row.spec.ID
	n := Node{Path: path, Type: row.spec.childType(), Leaked: leaks[path]}
	if row.proc != nil {
		n = row.proc.node(instances, leaks)
	}
	switch {
	case row.restarting:
		n.Status = StatusRestarting
	case row.proc == nil:
		n.Status = StatusTerminated
	}
	n.ID, n.Restart, n.Restarts = cmp.Or(n.ID, row.spec.ID), row.spec.Restart, row.restarts
	n.LastExitAt = row.lastExitAt
	if row.lastExit != nil {
		n.LastExit = row.lastExit.Error()
	}
	return n
}

// ChildInfo is a row of [WhichChildren].
type ChildInfo struct {
	ID         string // of instances: the template's
	Type       ChildType
	Restarting bool
	Proc       *Proc // nil: undefined, or restarting
}

// WhichChildren returns the children, or a Dynamic supervisor's instances and tasks,
// the last one started first.
func WhichChildren(ctx context.Context, sup Target) ([]ChildInfo, error) {
	return ask(ctx, sup, func(s *supervisor) ([]ChildInfo, error) {
		var infos []ChildInfo
		for _, row := range slices.Backward(s.table(true)) {
			i := ChildInfo{ID: row.spec.ID, Type: row.spec.childType(), Restarting: row.restarting}
			if row.alive() {
				i.Proc = row.proc
			}
			infos = append(infos, i)
		}
		return infos, nil
	})
}

// Counts is the result of [CountChildren].
type Counts struct {
	Specs       int // specifications; a Dynamic supervisor has one
	Active      int // running processes
	Supervisors int // children that are supervisors, running or not
	Workers     int // all others
}

// CountChildren counts the children.
func CountChildren(ctx context.Context, sup Target) (Counts, error) {
	return ask(ctx, sup, func(s *supervisor) (Counts, error) {
		n := Counts{Specs: len(s.spec.Children)}
		rows := s.table(true)
		if !s.dynamic() {
			n.Specs = len(rows)
		}
		for _, row := range rows {
			if row.spec.childType() == Supervisor {
				n.Supervisors++
			} else {
				n.Workers++
			}
			if row.alive() && (s.dynamic() || row.proc.Alive()) {
				n.Active++
			}
		}
		return n, nil
	})
}
