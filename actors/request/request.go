package request

import (
	"context"
	"errors"
	"time"

	"takt/actors/otp"
	"takt/store"
)

const (
	path = "takt/request_sup"
	// RestartGap is how long a request waits for a supervisor that restarts.
	RestartGap = time.Second
	// grace is what a request that is told to end gets for that.
	grace = 5 * time.Second
	// most is how many requests a pool's supervisor takes. It is a backstop: the
	// pool grants far fewer.
	most = 50_000
)

// Specs are the children of request_sup: each pool has a dynamic supervisor, whose
// children are the running requests of that pool.
func Specs(pools ...string) (specs []otp.ChildSpec) {
	for _, pool := range pools {
		specs = append(specs, otp.ChildSpec{ID: pool, Supervisor: ofPool})
	}
	return specs
}

func ofPool() otp.SupSpec {
	return otp.SupSpec{Strategy: otp.Dynamic, MaxChildren: most, Children: []otp.ChildSpec{{
		ID: "request", Restart: otp.Temporary, Shutdown: grace,
		TaskArgs: func(any) otp.Task { return otp.Task{} }, // requests come by otp.RunTask
	}}}
}

// Requests runs requests.
type Requests struct{ sups map[string]otp.Ref }

// New returns a handle of the request_sup with these pools.
func New(sys *otp.System, pools ...string) Requests {
	r := Requests{sups: make(map[string]otp.Ref, len(pools))}
	for _, pool := range pools {
		r.sups[pool] = sys.Ref(path + "/" + pool)
	}
	return r
}

// Run runs fn as a process under the supervisor of a pool's requests, in the
// caller's goroutine, and returns its error. label names the process. fn's
// context ends with ctx, and when the process is told to end.
//
// Errors beside fn's: a panic of fn, as a *otp.PanicError; store.Unavailable if
// the process was told to end, or could not be started within [RestartGap],
// because its supervisor restarts; ctx's cause.
func (r Requests) Run(ctx context.Context, pool, label string, fn func(ctx context.Context) error) error {
	begun := false
	run := func(ctx context.Context) error {
		begun = true
		return fn(ctx)
	}
	sup := r.sups[pool]
	err := otp.RunTask(ctx, sup, label, run)
	if err != nil && !begun {
		err = bridge(ctx, sup, func() error { return otp.RunTask(ctx, sup, label, run) }, &begun)
	}
	if ended, ok := errors.AsType[*otp.EndedError](err); ok {
		return unavailable(ended)
	}
	return err
}

var errNoSupervisor = errors.New("request supervisor did not come back in time")

// bridge tries again while a supervisor restarts, until begun.
func bridge(ctx context.Context, sup otp.Ref, run func() error, begun *bool) error {
	gap, cancel := context.WithTimeoutCause(ctx, RestartGap, errNoSupervisor)
	defer cancel()
	for {
		proc, err := sup.Await(gap)
		if err == nil {
			if err = run(); *begun {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case gap.Err() != nil || proc == nil || errors.Is(err, otp.ErrMaxChildren):
			return unavailable(err)
		}
		select { // it ended between the two: wait until its name is free again
		case <-proc.Done():
		case <-gap.Done():
		}
	}
}

func unavailable(cause error) error {
	e := store.Wrap(store.Unavailable, "Request could not be served, try again", cause)
	e.RetryAfter = time.Second
	return e
}
