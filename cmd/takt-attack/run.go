package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// stopLimit is how long a process may take to end in order.
const stopLimit = time.Minute

const (
	// diskLimit and unpackLimit are settings of the worker that is attacked.
	diskLimit, unpackLimit = 100 << 20, 50 << 20
	// memoryLimit is what it may take: 64 MiB, and 600 bytes for each of 500 000 entries.
	memoryLimit = 64<<20 + 600*500_000
)

// measured are the series of all parties of one attack, and how it went on.
type measured struct {
	victim, operator, probes, notices series
	memory, disk                      atomic.Int64 // the most that the worker took

	began, ended, settled, over time.Time // of the attack; when others should not notice it any more; of all
	first                       time.Time
}

// attackOnce starts takt, measures before, during and after an attack, and ends takt.
func attackOnce(ctx context.Context, base process.Site, a attack, mode string, n size) (r row) {
	site := base
	site.Dir = filepath.Join(base.Dir, a.name+"-"+strings.ReplaceAll(mode, " ", "-"))
	must.Do(os.Mkdir(site.Dir, 0o711)) //nolint:gosec // PostgreSQL's account works below
	c := must.Get(site.Controller(ctx, "takt", a.settings...))
	m := &measured{}
	beside, stop := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	err := must.Try(func() {
		m.begin(beside, &all, site, c, a)
		m.first = time.Now()
		process.Pause(ctx, n.before)
		play := newPlayer(ctx, site, c, a, mode, n)
		m.began = time.Now()
		must.Do(play.attack(ctx, n.during))
		m.ended = time.Now()
		process.Pause(ctx, n.settle)
		m.settled = time.Now()
		process.Pause(ctx, n.after)
		m.over = time.Now()
	})
	stop(errors.New("the measurement is over"))
	all.Wait()
	must.Do(errors.Join(err, c.Stop(context.WithoutCancel(ctx), stopLimit), context.Cause(ctx)))
	return judge(a, mode, m, n.timed)
}

// begin starts what is beside the attacker: victims, and what the attack is about.
func (m *measured) begin(ctx context.Context, all *sync.WaitGroup, site process.Site, c *process.Controller, a attack) {
	asked := make(chan struct{}) // closed when the victim has its last reply
	key := newKey(ctx, c, "victim", store.ScopeSubmit, store.ScopeRead)
	p := must.Get(newPerson(c.URL, victimAddress, key, "", 0))
	must.Do(p.Login(ctx, key))
	admin := must.Get(newPerson(c.URL, operatorAddress, "", c.AdminKey, 0))
	nobody := must.Get(newPerson(c.URL, probesAddress, "", "", 0))
	cancelled := func(string) {}
	if a.name == "notices" {
		cancelled = m.receive(ctx, all, c, asked)
	}
	if a.worker {
		m.work(ctx, all, site, c)
	}
	if a.name == "why" { // builds that nobody can take have a share of the queue, which the attacker fills
		for i := range 3 {
			can := fmt.Appendf(nil, `{"platforms":["ios"],"labels":{"victim":"%d"}}`, i)
			must.Get(c.Client.Register(ctx, api.Register{Name: "of the victim", Capabilities: can}))
		}
	}
	requests := must.Get(victim(ctx, p, cancelled))
	all.Go(func() {
		defer close(asked)
		m.victim.keep(ctx, 20, requests...)
	})
	all.Go(func() { m.operator.keep(ctx, 4, operator(admin)...) })
	all.Go(func() { m.probes.keep(ctx, 6, probes(nobody)...) })
}

// newKey makes a key with these scopes.
func newKey(ctx context.Context, c *process.Controller, name string, scopes ...store.Scope) string {
	return must.Get(client.Call(ctx, c.Client, api.CreateKey, api.CreateKeyIn{Name: name, Scopes: scopes})).Key
}

// receive starts two receivers of notices: a slow one of workers', and one of the victim's
// builds. They end when every notice has come, or is given up. It returns what notes that a
// notice is due.
func (m *measured) receive(ctx context.Context, all *sync.WaitGroup, c *process.Controller, asked <-chan struct{}) func(id string) {
	var due sync.WaitGroup
	slow, victims := &receiver{delay: 14500 * time.Millisecond}, &receiver{}
	for r, in := range map[*receiver]api.CreateSubscriptionIn{
		slow:    {SubscriptionFilter: api.SubscriptionFilter{Events: []string{"worker.offline", "worker.back"}}},
		victims: {SubscriptionFilter: api.SubscriptionFilter{Events: []string{"build.cancelled"}, Labels: map[string]string{"team": "victim"}}},
	} {
		address, stop, err := process.Serve(ctx, r)
		must.Do(err)
		all.Go(func() {
			defer stop()
			<-ctx.Done()
			select {
			case <-asked:
				due.Wait()
			case <-time.After(2 * patience): // the victim never began
			}
		})
		in.URL = "http://" + address
		must.Get(client.Call(ctx, c.Client, api.CreateSubscription, in))
	}
	return func(id string) {
		began := time.Now()
		due.Go(func() {
			err := errors.New("none came")
			select {
			case <-victims.come(id):
				err = nil
			case <-time.After(patience):
			}
			m.notices.add(sample{began, time.Since(began), "notice", err})
		})
	}
}

// work starts a worker and watches what it takes.
func (m *measured) work(ctx context.Context, all *sync.WaitGroup, site process.Site, c *process.Controller) {
	at := &process.Controller{URL: c.URL, APIKey: newKey(ctx, c, "worker", store.ScopeWorker)}
	dir := site.WorkerState("worker")
	p := must.Get(site.Worker(at, "worker", `echo >"$TAKT_OUTPUT"`, nil, "--platform", "android",
		"--unpack-limit", fmt.Sprint(unpackLimit), "--disk", fmt.Sprint(diskLimit), "--poll-wait", "2s"))
	all.Go(func() {
		for ctx.Err() == nil {
			if _, most, err := p.Resident(); err == nil { // it may have ended, as Stop says
				m.memory.Store(max(m.memory.Load(), int64(most)))
			}
			m.disk.Store(max(m.disk.Load(), used(dir)))
			process.Pause(ctx, 100*time.Millisecond)
		}
		p.Kill() // in the midst of a build: nobody waits for that
	})
}

// used is the disk that a directory takes, without the archives as they came.
func used(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil { // it has just been removed
			return nil //nolint:nilerr // see above
		}
		if info, err := d.Info(); err == nil && filepath.Ext(path) != ".zip" {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += int64(st.Blocks) * 512
			}
		}
		return nil
	})
	return sum
}

// player starts the attacker's process.
type player struct {
	site process.Site
	file string
	half bool // of a core is all that it gets
}

func newPlayer(ctx context.Context, site process.Site, c *process.Controller, a attack, mode string, n size) *player {
	p := &player{site: site, file: filepath.Join(site.Dir, "attacker.json"), half: mode == limited}
	p.site.Takt = must.Get(os.Executable())
	raw := must.Get(json.Marshal(attacker{
		Attack: a.name, Base: c.URL, Key: newKey(ctx, c, "attacker", a.scopes...), OneCore: p.half,
		Workers: n.workers, Classes: n.classes, Links: n.links, Entries: n.entries,
	}))
	must.Do(os.WriteFile(p.file, raw, 0o600))
	return p
}

// attack runs the attacker until it has attacked for so long.
func (p *player) attack(ctx context.Context, during time.Duration) error {
	attacker, err := p.site.Launch("attacker", nil, "play", p.file)
	if err != nil {
		return err
	}
	running, stop := context.WithCancelCause(ctx)
	var duty sync.WaitGroup
	if p.half {
		duty.Go(func() { half(running, attacker) })
	}
	worked := func() string { // nobody asks it anything, so that its own time is progress
		t, _ := process.TimesOf(attacker.PID())
		return t.Own.String()
	}
	err = attacker.Await(ctx, "the attack to begin", worked, func(context.Context) (bool, error) {
		return strings.Contains(attacker.Output(), readyLine), nil
	})
	if err == nil {
		process.Pause(ctx, during)
	}
	stop(errors.New("the attack is over"))
	duty.Wait()
	return errors.Join(err, attacker.Stop(context.WithoutCancel(ctx), stopLimit))
}

// half lets a process of one core run half of the time.
func half(ctx context.Context, p *process.Process) {
	for ctx.Err() == nil {
		_ = p.Signal(syscall.SIGSTOP)
		process.Pause(ctx, 20*time.Millisecond)
		_ = p.Signal(syscall.SIGCONT)
		process.Pause(ctx, 20*time.Millisecond)
	}
}
