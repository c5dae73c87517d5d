package otp

import (
	"math"
	"time"
)

// Restart says which ends of a child are followed by a restart.
type Restart uint8

// The restart types.
const (
	Permanent Restart = iota // every end
	Transient                // an end that is not normal, shutdown or {shutdown, term}
	Temporary                // none; the specification goes with the process
)

// Strategy says who is restarted when a child has to be.
type Strategy uint8

// The strategies.
const (
	OneForOne  Strategy = iota // the child
	OneForAll                  // all children: stopped in reverse order, started in order
	RestForOne                 // the child and those that were started after it
	Dynamic                    // simple_one_for_one: many instances of one template
)

// AutoShutdown says whether the end of significant children ends the supervisor.
// Only ends without restart count, and none that a request caused.
type AutoShutdown uint8

// The auto_shutdown values.
const (
	Never          AutoShutdown = iota
	AnySignificant              // the first one
	AllSignificant              // the last one
)

// ChildType tells supervisors from workers (servers and tasks).
type ChildType uint8

// The child types.
const (
	Worker ChildType = iota
	Supervisor
)

const (
	// Infinity as Shutdown gives a child all the time it wants.
	Infinity time.Duration = math.MaxInt64
	// BrutalKill as Shutdown kills a child at once, without Terminate.
	BrutalKill time.Duration = math.MinInt64

	defaultShutdown = 5 * time.Second
)

// ChildSpec describes a child. Exactly one of the start functions is set; those
// that end in Args belong to templates of [Dynamic] supervisors and get the
// argument of [StartDynamic]. They run in the child's goroutine, once for each
// incarnation, so a panic in them is the child's failure.
type ChildSpec struct {
	// ID names the child in its supervisor.
	ID string

	Server         func() Server
	Task           func() Task
	Supervisor     func() SupSpec
	ServerArgs     func(args any) Server
	TaskArgs       func(args any) Task
	SupervisorArgs func(args any) SupSpec

	// Name is the registered name. Default: the path, such as "takt/repo/pool".
	Name string
	// Key gives an instance of a template its place and name: the supervisor's
	// path, a slash and the key. Default: a number, and no registered name. It
	// runs in the supervisor's goroutine and must be quick.
	Key func(args any) string
	// Restart type. Default Permanent.
	Restart Restart
	// Shutdown is how long the child may take to stop before it is killed.
	// Default 5 s, for supervisors Infinity. See also BrutalKill.
	Shutdown time.Duration
	// StartTimeout bounds Init. Default none: a hanging Init then hangs the
	// supervisor until that is killed.
	StartTimeout time.Duration
	// Significant children end the supervisor according to its AutoShutdown.
	Significant bool
	// Drain lets a server handle what is queued before it obeys the order to
	// end. Otherwise the order overtakes the queue.
	Drain bool
	// Mailbox is how many calls and casts may be queued; more are refused with
	// ErrOverload. Default 0: no bound.
	Mailbox int
}

// SupSpec describes a supervisor. The zero value is OTP's default: one_for_one
// with 1 restart in 5 s.
type SupSpec struct {
	Strategy Strategy
	// Intensity is how many restarts are allowed within Period; one more and
	// the supervisor stops its children and ends with ErrShutdown. 0 with a
	// Period means none; 0 without a Period means 1.
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
	// Init, if set, runs in the supervisor's goroutine before anything is
	// started. An error is the result of the start, Ignore means: not wanted.
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
