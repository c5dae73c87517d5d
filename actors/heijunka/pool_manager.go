package heijunka

import (
	"time"

	"takt/actors/otp"
)

// The messages.
type (
	tick struct{} // timer: a second has passed
	look struct{} // timer: scale
)

// poolManager is the manager of one pool: it scales the pool by its utilisation
// and takes back overflow. Requests never wait for it, and it owns nothing: the
// numbers are the pool's, so that a restart loses none.
type poolManager struct {
	otp.Base
	p     *Pool
	every time.Duration
}

// Init starts the clocks.
func (m *poolManager) Init(c *otp.Ctx) error {
	c.SendEvery(time.Second, tick{})
	c.SendEvery(m.every, look{})
	return nil
}

// HandleInfo implements otp.Server.
func (m *poolManager) HandleInfo(c *otp.Ctx, msg any) {
	switch msg.(type) {
	case tick:
		m.p.linger()
	case look:
		if step := m.p.autoscale(); step != 0 {
			log := c.Logger()
			log.Info().Str("pool", m.p.name).Int("step", step).Msg("pool scaled")
		}
	default:
		m.Base.HandleInfo(c, msg)
	}
}
