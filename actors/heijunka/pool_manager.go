package heijunka

import (
	"time"

	"takt/actors/otp"
)

// PoolManagers are the managers of the pools, each with its pool's name. A manager
// scales its pool by its utilisation and takes back overflow. Requests never wait for
// it. A restart loses nothing, because the numbers belong to the pool.
func (h *Heijunka) PoolManagers() (specs []otp.ChildSpec) {
	for _, p := range h.pools {
		specs = append(specs, periodic(p.name, func() []job {
			return []job{{time.Second, func(*otp.Ctx) { p.linger() }}, {h.cfg.scaleEvery, p.manage}}
		}))
	}
	return specs
}

func (p *Pool) manage(c *otp.Ctx) {
	if step := p.autoscale(); step != 0 {
		c.Logger().Debug().Str("pool", p.name).Int("step", step).Msg("pool scaled")
	}
}

// job is what a periodic actor does, and how often.
type job struct {
	every time.Duration
	run   func(c *otp.Ctx)
}

// periodic describes an actor that handles only its timers. Each incarnation gets jobs
// of its own, and so its own state.
func periodic(id string, jobs func() []job) otp.ChildSpec {
	return otp.ChildSpec{ID: id, Server: func() otp.Server { return &timerActor{jobs: jobs()} }}
}

// timerActor runs jobs periodically.
type timerActor struct {
	otp.Base
	jobs []job
}

// Init starts the timers.
func (a *timerActor) Init(c *otp.Ctx) error {
	for _, j := range a.jobs {
		c.SendEvery(j.every, j)
	}
	return nil
}

// HandleInfo implements otp.Server.
func (a *timerActor) HandleInfo(c *otp.Ctx, msg any) {
	if j, ok := msg.(job); ok {
		j.run(c)
		return
	}
	a.Base.HandleInfo(c, msg)
}
