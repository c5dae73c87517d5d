package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/store/storetest/pgtest"
)

// takeover is how long takt may take to serve after a promotion.
const takeover = 5 * time.Second

// pair is a primary and its synchronous standby, each behind a proxy of its own.
type pair struct {
	busy    sync.Mutex // held by a failover
	turn    int        // failovers so far; guarded by busy
	nodes   [2]*pgtest.Node
	proxies [2]*proxy
	primary int // guarded by busy once faults are made
}

// open starts both servers.
func (p *pair) open(ctx context.Context, dir string) {
	must.Do(os.Chmod(dir, 0o711)) //nolint:gosec // the servers' account works below
	for i := range p.nodes {
		p.nodes[i] = must.Get(pgtest.New(dir))
		p.proxies[i] = must.Get(newProxy(ctx, dialer("tcp", fmt.Sprintf("127.0.0.1:%d", p.nodes[i].Port))))
	}
	must.Do(p.nodes[0].Init())
	must.Do(p.start(0))
	p.follow(ctx)
}

func (p *pair) start(i int) error { return p.nodes[i].Start("-c", "fsync=off") }

// url has both hosts.
func (p *pair) url() string {
	return fmt.Sprintf("postgres://takt@%s,%s/postgres?sslmode=disable", p.proxies[0].Address, p.proxies[1].Address)
}

// follow makes the other server a standby of the primary, which from then on waits for it
// with each commit.
func (p *pair) follow(ctx context.Context) {
	primary, standby := p.nodes[p.primary], p.nodes[1-p.primary]
	standby.Kill()
	must.Get(primary.Ask(ctx, "SELECT 'up'"))
	must.Do(standby.CopyOf(primary.Port, "standby"))
	must.Do(p.start(1 - p.primary))
	for must.Get(primary.Ask(ctx, "SELECT count(*)::text FROM pg_stat_replication WHERE application_name = 'standby' AND state = 'streaming'")) != "1" {
		process.Pause(ctx, 50*time.Millisecond)
	}
	synchronous(ctx, primary, "standby")
}

// synchronous lets commits wait for the standby of this name, or for none.
func synchronous(ctx context.Context, n *pgtest.Node, name string) {
	must.Do(n.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = '"+name+"'"))
	must.Do(n.Exec(ctx, "SELECT pg_reload_conf()"))
}

func (p *pair) close() {
	for i := range p.nodes {
		if p.proxies[i] != nil {
			p.proxies[i].Close()
		}
		if p.nodes[i] != nil {
			p.nodes[i].Stop()
		}
	}
}

// failover loses the primary, promotes the standby, and checks that each controller serves
// soon. Then the old primary comes back as it was, for a while, and becomes the standby.
func failover(ctx context.Context, d *drill, _, magnitude float64) error {
	p := d.site.pair
	old, next := p.nodes[p.primary], p.nodes[1-p.primary]
	link := p.proxies[p.primary]
	comeBack := func() { link.set(healthy) }
	kind := [...]string{"killed", "stopped", "partitioned", "black-holed"}[p.turn%4]
	p.turn++
	d.note("primary %s", kind)
	switch kind {
	case "killed":
		old.Kill()
		comeBack = func() { must.Do(p.start(p.primary)) }
	case "stopped":
		old.Signal(syscall.SIGSTOP)
		comeBack = func() { old.Signal(syscall.SIGCONT) }
	case "partitioned":
		link.set(partitioned)
	default:
		link.set(blackholed)
	}
	process.Pause(ctx, time.Duration(3*magnitude*float64(time.Second))) // until somebody promotes
	ctx = context.WithoutCancel(ctx)
	return must.Try(func() {
		synchronous(ctx, next, "")
		must.Get(next.Ask(ctx, "SELECT pg_promote()::text"))
		d.note("standby promoted")
		d.serves(ctx)
		comeBack()
		d.note("old primary is back")
		process.Pause(ctx, 2*time.Second)
		p.primary = 1 - p.primary
		p.follow(ctx)
		link.set(healthy)
		d.note("it is the standby")
	})
}

// serves waits until each controller has taken a build.
func (d *drill) serves(ctx context.Context) {
	promoted := time.Now()
	var all sync.WaitGroup
	for i, c := range d.site.controllers {
		all.Go(func() {
			submission := newSubmission(newRandom(d.seed, uint64(promoted.UnixNano())+uint64(i)))
			for {
				attempt, cancel := context.WithTimeout(ctx, time.Second)
				accepted, err := c.serves.Load().Client.Submit(attempt, submission.submit)
				cancel()
				took := time.Since(promoted)
				if err == nil {
					d.ledger.accept(accepted.ID, submission.digest)
					d.ledger.count(func(r *report) { r.LongestTakeover = max(r.LongestTakeover, took.Seconds()) })
					d.note("%s served %.1f s after the promotion", c.name, took.Seconds())
				}
				if took > takeover {
					d.ledger.violation("%s did not serve within %s of a promotion: %v", c.name, takeover, err)
				}
				if err == nil || took > d.recovery {
					return
				}
				process.Pause(ctx, 50*time.Millisecond)
			}
		})
	}
	all.Wait()
}

// failovers are the only faults of a drill with a pair.
func failovers() []fault {
	return []fault{{"failover", func(d *drill, _ float64) *sync.Mutex { return &d.site.pair.busy }, failover}}
}
