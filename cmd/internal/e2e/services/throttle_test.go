package services

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/hubspottest"
)

// startSecond starts a second controller on the database of owner.
func startSecond(env *takttest.ThrottleEnv, owner *process.Controller, more ...string) *process.Controller {
	env.T.Helper()
	return env.StartThrottle("second", append(owner.Shared(), more...)...)
}

// waiting returns how many actions wait, -1 if that cannot be seen.
func waiting(ctx context.Context, db *pgx.Conn) (n int) {
	if err := db.QueryRow(ctx, `SELECT count(*) FROM action_executions WHERE state = 'waiting'`).Scan(&n); err != nil {
		return -1
	}
	return n
}

// errand is a webhook that HubSpot has to send.
type errand struct {
	portal int64
	id     string
}

// couriers send webhooks as HubSpot does: again, with growing delays, until each
// is acknowledged.
type couriers struct {
	env     *takttest.ThrottleEnv
	errands chan errand
	done    sync.WaitGroup

	mu   sync.Mutex
	urls []string // of the controllers, of which any may be asked

	taken atomic.Int64 // how many were acknowledged
	again atomic.Int64 // how often one was sent again
}

func newCouriers(env *takttest.ThrottleEnv, n, room int, urls ...string) *couriers {
	c := &couriers{env: env, errands: make(chan errand, room), urls: urls}
	for range n {
		c.done.Go(func() {
			for o := range c.errands {
				c.carry(env.T.Context(), o)
			}
		})
	}
	return c
}

func (c *couriers) carry(ctx context.Context, o errand) {
	for delay := 20 * time.Millisecond; ctx.Err() == nil; delay = min(2*delay, 500*time.Millisecond) {
		c.mu.Lock()
		url := c.urls[rand.IntN(len(c.urls))]
		c.mu.Unlock()
		if c.env.Fire(ctx, url, o.portal, o.id) {
			c.taken.Add(1)
			return
		}
		c.again.Add(1)
		takttest.Pause(ctx, rand.N(delay))
	}
}

// send gives them errands and returns when some of these are acknowledged.
func (c *couriers) send(errands []errand) {
	c.env.T.Helper()
	before := c.taken.Load()
	for _, o := range errands {
		c.errands <- o
	}
	require.Eventually(c.env.T, func() bool { return c.taken.Load() > before+20 }, time.Minute, time.Millisecond)
}

// moved is where a controller is now.
func (c *couriers) moved(nr int, url string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.urls[nr] = url
}

// finish waits until all is acknowledged.
func (c *couriers) finish() {
	close(c.errands)
	c.done.Wait()
}

// requireRate checks that no window of one period has more than the rate allows,
// repeats included.
func requireRate(t *testing.T, list []hubspottest.Completion, portal int64, most int, period time.Duration) {
	t.Helper()
	got := ofPortal(list, portal)
	require.LessOrEqual(t, hubspottest.MostInAnyWindow(got, period), most, "portal %d, %d per %s, %d completions", portal, most, period, len(got))
}

func ofPortal(list []hubspottest.Completion, portal int64) (out []hubspottest.Completion) {
	for _, c := range list {
		if c.PortalID == portal {
			out = append(out, c)
		}
	}
	return out
}

// tempo is a portal's rate and how many webhooks it gets.
type tempo struct{ most, seconds, webhooks int }

// TestNoActionIsLostOrTooFastWhoeverIsKilled gives 20 portals random rates and kills two
// controllers of one database in turn, while they take, claim, send and record. HubSpot
// loses replies, and is slow at times.
func TestNoActionIsLostOrTooFastWhoeverIsKilled(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	tempi := map[int64]tempo{takttest.Portal: {300, 1, 900}, takttest.Portal + 1: {1, 5, 3}}
	var errands []errand
	var portals []int64
	for i := range 20 {
		portal := takttest.Portal + int64(i)
		p, ok := tempi[portal]
		if !ok { // from 1 to 100, as often below 10 as above
			p.most, p.seconds = int(math.Exp(random.Float64()*math.Log(100))), []int{1, 1, 2, 3, 5}[random.IntN(5)]
			p.webhooks = 2*p.most + max(1, p.most/2)
			tempi[portal] = p
		}
		portals = append(portals, portal)
		for n := range p.webhooks {
			errands = append(errands, errand{portal, fmt.Sprintf("ap-%d-%d", portal, n)})
		}
	}
	random.Shuffle(len(errands), func(i, k int) { errands[i], errands[k] = errands[k], errands[i] })
	env := takttest.NewThrottleEnv(t, hubspottest.Config{RollingLimit: -1}, portals[1:]...)
	owner := env.StartThrottle("owner")
	second := startSecond(env, owner)
	for i, portal := range portals {
		env.Install([]*process.Controller{owner, second}[i%2], api.ThrottleConfig{MaxThroughput: tempi[portal].most, TimePeriod: tempi[portal].seconds, TimeUnit: "seconds"}, portal)
		env.HubSpot.Fail(portal, moods(i)...)
	}
	senders := newCouriers(env, 16, len(errands), owner.URL, second.URL)
	part := len(errands) / 3 // each kill meets webhooks, however fast the machine is
	senders.send(errands[:part])
	takttest.Pause(t.Context(), time.Second+rand.N(time.Second))
	senders.send(errands[part : 2*part])
	second.Kill()
	second = startSecond(env, owner)
	senders.moved(1, second.URL)
	takttest.Pause(t.Context(), time.Second+rand.N(time.Second))
	senders.send(errands[2*part:])
	owner.Kill()
	owner = env.StartThrottle("owner")
	senders.moved(0, owner.URL)
	senders.finish()
	db := takttest.Connect(t, owner)
	require.Eventually(t, func() bool { return waiting(t.Context(), db) == 0 }, 3*time.Minute, takttest.Tick, "nothing waits")

	list := env.HubSpot.Completions()
	for _, portal := range portals {
		p, distinct := tempi[portal], map[string]bool{}
		for _, done := range ofPortal(list, portal) {
			distinct[done.CallbackID] = true
			require.Equal(t, "SUCCESS", done.State)
		}
		require.Len(t, distinct, p.webhooks, "portal %d", portal)
		requireRate(t, list, portal, p.most, time.Duration(p.seconds)*time.Second)
	}
	var rows, ended int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE state = 'completed' AND finished_at IS NOT NULL) FROM action_executions`).Scan(&rows, &ended))
	require.Equal(t, []int{len(errands), len(errands)}, []int{rows, ended})
	require.Positive(t, senders.again.Load(), "no kill was noticed")
	t.Logf("%d webhooks, %d sent again, %d completions", len(errands), senders.again.Load(), len(list))
}

// moods is what HubSpot does to a portal's first calls.
func moods(i int) []hubspottest.Fault {
	switch i % 4 {
	case 1: // it was done, and the reply is lost
		return []hubspottest.Fault{{After: true, Times: 1}}
	case 2: // it is done late
		return []hubspottest.Fault{{Status: 204, Delay: 700 * time.Millisecond, Times: 3}}
	case 3: // nothing was done
		return []hubspottest.Fault{{Status: 429, Header: map[string]string{"Retry-After": "1"}, Times: 1}, {Status: 503, Times: 1}}
	default:
		return nil
	}
}
