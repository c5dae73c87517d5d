package deployment

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// The messages.
type (
	look    struct{}                // cast, or info after dismiss: check the deployments
	dismiss struct{ sup *otp.Proc } // cast: a deployment has ended
)

// callLimit bounds a request to a supervisor, which may be busy stopping another deployment.
const callLimit = 2 * workerStop

// idleLooks is how many times longer the resumer pauses while this controller works on no
// deployment. A deployment that is created here starts immediately, by a cast.
const idleLooks = 10

// resumer starts a supervisor for each deployment that nobody works on. It stops the
// supervisors of deployments that this controller must no longer work on: done,
// cancelled, paused, or taken over after the lease expired. A restart loses nothing.
type resumer struct {
	otp.Base
	d     *Deployments
	looks otp.Job[bool]
}

// Init implements otp.Server.
func (r *resumer) Init(c *otp.Ctx) error {
	r.looks = otp.Job[bool]{
		Begin:  func() func(context.Context) (bool, error) { return r.d.attend },
		Done:   r.looked,
		Outage: store.DescribeOutage,
	}
	r.d.bus.Listen(c, pubsub.ListenerResumed)
	r.looks.Start(c)
	return nil
}

// HandleCast implements otp.Server.
func (r *resumer) HandleCast(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case look, pubsub.Event: // or the database is back
		r.looks.Start(c)
	case dismiss:
		r.dismiss(c, msg.sup)
	default:
		r.Base.HandleCast(c, msg)
	}
}

// HandleInfo implements otp.Server.
func (r *resumer) HandleInfo(c *otp.Ctx, msg any) { r.HandleCast(c, msg) }

// looked handles the result of a check. idle means that this controller works on nothing.
func (r *resumer) looked(c *otp.Ctx, idle bool, err error) (next time.Duration) {
	if err != nil && !store.IsOutage(err) && !gone(err) {
		c.Logger().Error().Err(err).Msg("checking for deployments failed")
	}
	if idle { // only deployments of other controllers may be left, which are busy or have died
		return r.d.cfg.Look * idleLooks
	}
	return r.d.cfg.Look
}

// gone reports whether a supervisor is restarting. The next look tries again.
func gone(err error) bool {
	_, down := errors.AsType[*otp.DownError](err)
	return down || errors.Is(err, otp.ErrNoProc) || errors.Is(err, context.Canceled) || errors.Is(err, otp.ErrShutdown)
}

// attend starts and stops supervisors, so that those of the deployments claimed by this
// controller run. idle is true if there are none.
func (d *Deployments) attend(ctx context.Context) (idle bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callLimit, otp.ErrTimeout)
	defer cancel()
	running, err := d.attended(ctx)
	if err != nil {
		return false, err
	}
	d.gauges.active.Store(int64(len(running)))
	ids := slices.Collect(maps.Keys(running))
	var ours []store.DeploymentClaim
	if len(ids) > 0 {
		if ours, err = d.db.Renew(ctx, d.cfg.Owner, lease, ids); err != nil {
			return false, err
		}
	}
	for id, sup := range running {
		if !slices.ContainsFunc(ours, func(c store.DeploymentClaim) bool { return c.ID == id }) {
			if err := otp.TerminateProc(ctx, d.deploymentSup, sup); err != nil {
				return false, err
			}
		}
	}
	claims, err := d.db.Claim(ctx, d.cfg.Owner, lease, ids, max(0, d.cfg.MaxActive-len(ours)))
	if err != nil {
		return false, err
	}
	for _, claim := range claims {
		if _, err := otp.StartDynamic(ctx, d.deploymentSup, claim); err != nil {
			return false, err // the claim is ours but has no supervisor: the next look claims it again
		}
	}
	return len(running)+len(claims) == 0, nil
}

// attended returns the running supervisors by the ids of their deployments.
func (d *Deployments) attended(ctx context.Context) (map[string]*otp.Proc, error) {
	children, err := otp.WhichChildren(ctx, d.deploymentSup)
	if err != nil {
		return nil, err
	}
	running := map[string]*otp.Proc{}
	for _, child := range children {
		if child.Proc != nil {
			running[strings.TrimPrefix(child.Proc.Path(), d.deploymentSup.Name()+"/")] = child.Proc
		}
	}
	return running, nil
}

// dismiss stops the supervisor of a deployment that has ended. Then it checks the deployments
// again, because another one may wait for Config.MaxActive.
func (r *resumer) dismiss(c *otp.Ctx, sup *otp.Proc) {
	d := r.d
	c.Async(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeoutCause(ctx, callLimit, otp.ErrTimeout)
		defer cancel()
		_ = otp.TerminateProc(ctx, d.deploymentSup, sup) // it is already gone, or the next look stops it
		return look{}
	})
}
