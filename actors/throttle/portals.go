package throttle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"takt/actors/otp"
	"takt/store"
	"takt/store/hubspot"
)

// Portals is the handle of portal_queue_sup and of the PortalQueues below it. Safe for
// concurrent use.
type Portals struct {
	sys     *otp.System
	sup     otp.Ref
	db      Store
	hs      *hubspot.Client
	tokens  *Tokens
	metrics *figures
	cfg     Config
	started func() // called at each start of portal_queue_sup
	// resting says until when a PortalQueue has nothing to do: portal → time.Time. Each
	// PortalQueue writes its own entry.
	resting sync.Map
}

// Spec describes portal_queue_sup to its supervisor.
func (p *Portals) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "portal_queue_sup", Supervisor: p.supervisor}
}

func (p *Portals) supervisor() otp.SupSpec {
	p.started()
	return otp.SupSpec{
		Strategy: otp.Dynamic, MaxChildren: p.cfg.MaxPortals,
		Children: []otp.ChildSpec{{
			ID: "portal_queue", Restart: otp.Temporary,
			Key: func(args any) string { return fmt.Sprint(args) },
			ServerArgs: func(args any) otp.Server {
				id, _ := args.(int64)
				return &portalQueue{p: p, id: id}
			},
			// A stop waits for a running call to HubSpot, because its outcome must be
			// recorded.
			Shutdown: p.cfg.call + transactionTime,
		}},
	}
}

// proc returns the portal's PortalQueue, nil if none runs.
func (p *Portals) proc(portal int64) *otp.Proc {
	return p.sys.Whereis(p.sup.Name() + "/" + strconv.FormatInt(portal, 10))
}

// ErrFull means that Config.MaxPortals are being served.
var ErrFull = errors.New("too many portals are served at once")

// wakeTries is how often Wake tries, because the PortalQueue may be ending.
const wakeTries = 5

// Wake makes the portal's PortalQueue serve queues, and starts it if it does not run. The
// values of queues are the numbers of new actions, 0 if not known. Wake never waits for
// HubSpot. Errors: ErrFull, or that of the start.
func (p *Portals) Wake(ctx context.Context, portal int64, queues map[string]int) error {
	var err error
	for range wakeTries {
		proc := p.proc(portal)
		if proc == nil {
			proc, err = otp.StartDynamic(ctx, p.sup, portal)
			var running *otp.AlreadyStartedError
			switch {
			case errors.As(err, &running):
				proc = running.Proc
			case errors.Is(err, otp.ErrMaxChildren):
				p.metrics.full.Inc()
				if !p.makeRoom(ctx) {
					return ErrFull
				}
				continue
			case err != nil:
				return fmt.Errorf("starting the queue of portal %d: %w", portal, err)
			}
		}
		var down *otp.DownError
		if _, err = otp.Call[any](ctx, proc, wake(queues)); !errors.As(err, &down) {
			return err
		}
	}
	return fmt.Errorf("waking the queue of portal %d: %w", portal, err)
}

// makeRoom ends the PortalQueue that has nothing to do for longest, provided that the jobs of
// its queues will start it again before that time is over. Without it, portals whose daily
// budget is spent would block all others. It returns whether one has ended.
func (p *Portals) makeRoom(ctx context.Context) bool {
	var portal int64
	longest := time.Now().Add(p.cfg.Snooze)
	p.resting.Range(func(id, until any) bool {
		if t, _ := until.(time.Time); t.After(longest) {
			portal, _ = id.(int64)
			longest = t
		}
		return true
	})
	// A concurrent caller gets another portal.
	if _, mine := p.resting.LoadAndDelete(portal); !mine {
		return false
	}
	proc := p.proc(portal)
	if proc == nil {
		return true
	}
	if ends, err := otp.Call[bool](ctx, proc, makeRoom{}); err != nil || !ends {
		return err != nil && ctx.Err() == nil // it has already ended
	}
	select {
	case <-proc.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// wakeAll wakes the portals of queues with new actions. If that fails for a portal, the jobs
// of its queues wake it later.
func (p *Portals) wakeAll(ctx context.Context, news map[store.QueueKey]int) {
	portals := map[int64]map[string]int{}
	for key, n := range news {
		if portals[key.PortalID] == nil {
			portals[key.PortalID] = map[string]int{}
		}
		portals[key.PortalID][key.ID()] = n
	}
	for portal, queues := range portals {
		if ctx.Err() != nil {
			return
		}
		_ = p.Wake(ctx, portal, queues) // the job tries again
	}
}

// changed makes the portal's PortalQueue, if one runs, check all its queues again, and serve
// queue unless that is "".
func (p *Portals) changed(portal int64, queue string) {
	if proc := p.proc(portal); proc != nil {
		otp.Cast(proc, lookAgain{queue})
	}
}

// changedAll makes all running PortalQueues check their queues again.
func (p *Portals) changedAll() {
	for _, name := range p.sys.Names() {
		if strings.HasPrefix(name, p.sup.Name()+"/") {
			otp.Cast(p.sys.Ref(name), lookAgain{})
		}
	}
}

// Resume wakes the portals of queues that have actions.
func (p *Portals) Resume(ctx context.Context, busy []store.QueueKey) {
	news := map[store.QueueKey]int{}
	for _, k := range busy {
		news[k] = 0
	}
	p.wakeAll(ctx, news)
}
