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
	// grace is how long a request may take to end when its process has to end. The HTTP
	// server closes its connection after half of that, which ends most.
	grace = 2 * time.Second
	// most is how many requests a pool's supervisor takes. It is only a safety limit,
	// because the pool admits far fewer.
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
		TaskArgs: func(context.Context, any) error { return nil }, // requests come by otp.RunTask
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
// caller's goroutine, and returns its error. fn's context ends with ctx, and when
// the process has to end.
//
// Other errors: a panic of fn, as a *otp.PanicError; store.Unavailable if the process
// had to end, or could not be started within [RestartGap] because its supervisor
// restarts; ctx's cause.
func (r Requests) Run(ctx context.Context, pool string, w *store.Work, fn func(ctx context.Context) error) error {
	sup := r.sups[pool]
	ran, err := otp.RunTask(ctx, sup, w, w.OnStop, fn)
	if !ran {
		ran, err = again(ctx, sup, w, fn)
	}
	_, ended := errors.AsType[*otp.EndedError](err)
	if ended || !ran && ctx.Err() == nil {
		return store.NewUnavailable("Request could not be served, try again", err)
	}
	return err
}

var errNoSupervisor = errors.New("request supervisor did not come back in time")

// again tries to run fn until the supervisor has restarted, for at most RestartGap.
func again(ctx context.Context, sup otp.Ref, w *store.Work, fn func(ctx context.Context) error) (ran bool, err error) {
	gap, cancel := context.WithTimeoutCause(ctx, RestartGap, errNoSupervisor)
	defer cancel()
	for gap.Err() == nil {
		proc, err := sup.Await(gap)
		if err != nil {
			break
		}
		if ran, err = otp.RunTask(ctx, sup, w, w.OnStop, fn); ran {
			return ran, err
		}
		select { // it is stopping: wait until its name is free again
		case <-proc.Done():
		case <-gap.Done():
		}
	}
	return false, context.Cause(gap)
}
