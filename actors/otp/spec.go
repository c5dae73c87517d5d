package otp

import (
	"cmp"
	"context"
	"math"
	"time"
)

// Restart is the set of ends after which a child is restarted.
type Restart uint8

// The restart types.
const (
	Permanent Restart = iota // every end
	Transient                // an end that is not normal, shutdown or {shutdown, term}
	Temporary                // none; the specification is removed with the process
)

// Strategy is which children are restarted together with one.
type Strategy uint8

// The strategies.
const (
	OneForOne  Strategy = iota // only that child
	OneForAll                  // all children: stopped in reverse order, started in order
	RestForOne                 // the child and those that were started after it
	Dynamic                    // simple_one_for_one: many instances of one template
)

// AutoShutdown is whether the end of significant children ends the supervisor.
// Ends that are followed by a restart, or that a request caused, do not count.
type AutoShutdown uint8

// The auto_shutdown values.
const (
	Never          AutoShutdown = iota
	AnySignificant              // the first one
	AllSignificant              // the last one
)

// ChildType is supervisor or worker (server or task).
type ChildType uint8

// The child types.
const (
	Worker ChildType = iota
	Supervisor
)

const (
	// Infinity as Shutdown sets no limit.
	Infinity time.Duration = math.MaxInt64
	// BrutalKill as Shutdown kills a child at once, without Terminate.
	BrutalKill time.Duration = math.MinInt64

	defaultShutdown = 5 * time.Second
)

// ChildSpec describes a child. Exactly one of the start functions is set. Those
// whose names end in Args are for templates of [Dynamic] supervisors and get the
// argument of [StartDynamic]. A start function runs in the child's goroutine, once
// per incarnation, so a panic in it is the child's failure.
type ChildSpec struct {
	// ID names the child in its supervisor.
	ID string

	Server         func() Server
	Supervisor     func() SupSpec
	ServerArgs     func(args any) Server
	SupervisorArgs func(args any) SupSpec

	// Task is a process without a mailbox. It ends when the function returns: nil
	// is ErrNormal, an error is the reason, a panic is a crash. ctx is cancelled
	// when the process is asked to end, with the reason as cause (ErrShutdown,
	// ErrKilled, ...). If the function then returns nil or the context's error, the
	// process ends with that reason. A task that does not return within its shutdown
	// time is abandoned.
	Task     func(ctx context.Context) error
	TaskArgs func(ctx context.Context, args any) error

	// Name is the registered name. Default: the path, such as "takt/database/pool".
	Name string
	// Key gives an instance of a template its path and name: the supervisor's path,
	// a slash and the key. Default: a number as key, and no registered name. Key runs
	// in the supervisor's goroutine and must be quick.
	Key func(args any) string
	// Restart type. Default Permanent.
	Restart Restart
	// Shutdown is how long the child may take to stop before it is killed.
	// Default 5 s, for supervisors Infinity. See also BrutalKill.
	Shutdown time.Duration
	// Significant children end the supervisor according to its AutoShutdown.
	Significant bool
	// Mailbox is how many calls and casts may be queued. Beyond it Call fails with
	// ErrOverload and Cast returns false. Default 0: no bound.
	Mailbox int
}

// SupSpec describes a supervisor. The zero value is OTP's default: one_for_one
// with 1 restart in 5 s.
type SupSpec struct {
	Strategy Strategy
	// Intensity is how many restarts are allowed within Period. After one more the
	// supervisor stops its children and ends with ErrShutdown. 0 with a Period means
	// none; 0 without a Period means 1.
	Intensity int
	// Period of the intensity, in whole seconds. Default 5 s.
	Period       time.Duration
	AutoShutdown AutoShutdown
	// Children in start order. A Dynamic supervisor has exactly one: its
	// template.
	Children []ChildSpec
	// MaxChildren bounds the instances of a Dynamic supervisor. Default 0: no
	// bound.
	MaxChildren int
	// Init, if set, runs in the supervisor's goroutine before any child is started.
	// An error is the result of the start; Ignore means that the supervisor is not
	// wanted.
	Init func() error
}

// withDefaults returns the specification with OTP's defaults filled in.
func (s SupSpec) withDefaults() SupSpec {
	if s.Period == 0 {
		s.Period = 5 * time.Second
		if s.Intensity == 0 {
			s.Intensity = 1
		}
	}
	s.MaxChildren = cmp.Or(s.MaxChildren, math.MaxInt)
	return s
}

// childType returns the type as OTP counts it.
func (c *ChildSpec) childType() ChildType {
	if c.Supervisor != nil || c.SupervisorArgs != nil {
		return Supervisor
	}
	return Worker
}

// patience returns how long the child may take to stop.
func (c *ChildSpec) patience() time.Duration {
	switch {
	case c.Shutdown != 0:
		return c.Shutdown
	case c.childType() == Supervisor:
		return Infinity
	default:
		return defaultShutdown
	}
}

// String returns OTP's word.
func (r Restart) String() string { return word(r, "permanent", "transient", "temporary") }

// String returns OTP's word.
func (s Strategy) String() string {
	return word(s, "one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one")
}

// String returns OTP's word.
func (t ChildType) String() string { return word(t, "worker", "supervisor") }

// word returns the n-th word, or "unknown".
func word[T ~uint8](n T, words ...string) string {
	if int(n) >= len(words) {
		return "unknown"
	}
	return words[n]
}

// check returns what is wrong with the flags, in OTP's order and words.
func (s *SupSpec) check() error {
	bad := func(problem string, value any) error {
		return &SpecError{Group: "supervisor_data", Problem: problem, Value: value}
	}
	switch {
	case s.Strategy > Dynamic:
		return bad("invalid_strategy", s.Strategy)
	case s.Intensity < 0:
		return bad("invalid_intensity", s.Intensity)
	case s.Period < time.Second:
		return bad("invalid_period", s.Period)
	case s.AutoShutdown > AllSignificant:
		return bad("invalid_auto_shutdown", s.AutoShutdown)
	case s.Strategy == Dynamic && len(s.Children) != 1:
		ids := []string{}
		for _, c := range s.Children {
			ids = append(ids, c.ID)
		}
		return &SpecError{Group: "bad_start_spec", Problem: "template", Value: ids}
	}
	seen := map[string]bool{}
	for i := range s.Children {
		c := &s.Children[i]
		err := c.check(s.AutoShutdown)
		if err == nil && seen[c.ID] {
			err = &SpecError{Problem: "duplicate_child_name", Value: c.ID}
		}
		if err != nil {
			err.Group = "start_spec"
			return err
		}
		seen[c.ID] = true
	}
	return nil
}

// check returns what is wrong with a child specification.
func (c *ChildSpec) check(auto AutoShutdown) *SpecError {
	switch {
	case c.ID == "":
		return &SpecError{Problem: "missing_id"}
	case c.starts() != 1:
		return &SpecError{Problem: "invalid_start", Value: c.ID}
	case c.Restart > Temporary:
		return &SpecError{Problem: "invalid_restart_type", Value: c.Restart}
	case c.Significant && auto == Never:
		return &SpecError{Problem: "bad_combination", Value: "auto_shutdown never, significant"}
	case c.Significant && c.Restart == Permanent:
		return &SpecError{Problem: "bad_combination", Value: "restart permanent, significant"}
	case c.Shutdown < 0 && c.Shutdown != BrutalKill:
		return &SpecError{Problem: "invalid_shutdown", Value: c.Shutdown}
	}
	return nil
}

// starts counts the start functions that are set.
func (c *ChildSpec) starts() (n int) {
	for _, set := range []bool{
		c.Server != nil, c.Task != nil, c.Supervisor != nil,
		c.ServerArgs != nil, c.TaskArgs != nil, c.SupervisorArgs != nil,
	} {
		if set {
			n++
		}
	}
	return n
}
