package heijunka

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Config are heijunka's settings. Zero values take the defaults, those of sizes
// from the preset medium. Make it with [Preset].
type Config struct {
	// Name is the name of its supervisor. Defaults to "takt/heijunka".
	Name string
	// Off lets every request through unlevelled.
	Off bool
	// Limits are the gate's.
	Limits Limits
	// Pools are the pools of workers; a domain's own pool has its name.
	Pools []PoolConfig
	// Domains are what requests belong to.
	Domains []DomainConfig

	// Wait is how long a request waits for a slot. Defaults to 5 s.
	Wait time.Duration
	// RestartGap is how long it waits while its pool has no workers at all.
	// Defaults to 1 s.
	RestartGap time.Duration
	// Spill is the utilisation above which the preferred pool is passed over for
	// the least loaded of the list. Defaults to 0.85.
	Spill float64

	// Check is how often the load is compared with its levels. Defaults to 1 s.
	Check time.Duration
	// Remind is how often a level that holds on is told again. Defaults to 5 s.
	Remind time.Duration

	Scaling ScalingConfig
	Health  HealthConfig
	Balance BalanceConfig
	Burst   BurstConfig
}

// PoolConfig is one pool's sizes, in workers.
type PoolConfig struct {
	Name              string
	Initial, Min, Max int
	// Overflow is how many may be added at once while requests wait, beyond what
	// scaling has made of the pool.
	Overflow int
	// Queue is how many requests may wait for a slot.
	Queue int
}

// DomainConfig is one kind of requests.
type DomainConfig struct {
	Name string
	// Priority domains are admitted up to the hard limit.
	Priority bool
	// Pools is the list that its requests never leave.
	Pools []string
	// Affinity is the part of the list that is preferred; empty: all of it.
	Affinity []string
}

// ScalingConfig says when pools grow and shrink.
type ScalingConfig struct {
	// Every is the time between two looks. Defaults to 5 s.
	Every time.Duration
	// Up and Down are the utilisations above and below which a worker is added
	// or removed. Default to 0.8 and 0.5.
	Up, Down float64
	// Gap is the least time between two changes. Defaults to 1 s.
	Gap time.Duration
	// Linger is how long overflow workers stay idle before they go. Defaults to
	// 5 s.
	Linger time.Duration
}

// HealthConfig says how workers are watched and replaced.
type HealthConfig struct {
	// Every is the time between two rounds of pings. Defaults to 10 s.
	Every time.Duration
	// Timeout is a ping's; who does not answer is replaced. Defaults to 2 s.
	Timeout time.Duration
	// Window is over how long latencies and errors are averaged. Defaults to 60 s.
	Window time.Duration
	// Busy and Errors are the utilisation and the error rate above which a pool
	// is degraded. Default to 0.8 and 0.05.
	Busy, Errors float64
	// Critical is the utilisation above which it is critical. Defaults to 0.95.
	Critical float64
	// BackoffMin and BackoffMax bound the delay before a crashed worker is
	// replaced; it doubles with each crash. Default to 100 ms and 30 s.
	BackoffMin, BackoffMax time.Duration
}

// BalanceConfig says when capacity moves.
type BalanceConfig struct {
	// Every is the time between two looks. Defaults to 5 s.
	Every time.Duration
	// Below is the coefficient under which a worker is moved. Defaults to 0.8.
	Below float64
	// Gap is the least time between two moves. Defaults to 30 s.
	Gap time.Duration
}

// BurstConfig says what a burst is and what is done about it.
type BurstConfig struct {
	// Disabled turns the detection off.
	Disabled bool
	// Every is the time between two samples. Defaults to 1 s.
	Every time.Duration
	// Baseline is of how many samples the mean is taken. Defaults to 60.
	Baseline int
	// Factor is by how much demand has to exceed the baseline. Defaults to 10.
	Factor float64
	// Floor is the least number of requests that can be a burst. Defaults to 20.
	Floor int
	// Workers is how many each pool gets, on top of its maximum. Defaults to 5.
	Workers int
	// Duration is for how long. Defaults to 5 min.
	Duration time.Duration
	// Cooldown is the least time from a surge's end to the next. Defaults to 30 s.
	Cooldown time.Duration
	// Cost is what one surge worker costs. Defaults to 2.0.
	Cost float64
}

// The domains of takt.
const (
	Fleet    = "fleet"
	Submit   = "submit"
	Query    = "query"
	Hook     = "hook"
	Transfer = "transfer"
)

// sizes are what presets differ in.
type sizes struct {
	soft, hard, queue int
	pools             map[string]PoolConfig
}

// presets lists the sizes by name. A pool shrinks to half of its initial size.
// Overflow takes it to its maximum at once when requests wait; those of fleet and
// hook are larger, because polls and webhooks are served many at a time: more of
// them in their slots make one transaction for all, fewer make more transactions.
func presets() map[string]sizes {
	pool := func(initial, most, overflow int) PoolConfig {
		return PoolConfig{Initial: initial, Min: (initial + 1) / 2, Max: most, Overflow: overflow}
	}
	return map[string]sizes{
		"small": {500, 600, 500, map[string]PoolConfig{
			Fleet: pool(5, 15, 128), Submit: pool(4, 12, 8), Query: pool(4, 12, 8), Hook: pool(4, 12, 64), Transfer: pool(16, 64, 48),
		}},
		"medium": {1000, 1200, 1000, map[string]PoolConfig{
			Fleet: pool(10, 30, 256), Submit: pool(8, 25, 17), Query: pool(5, 20, 15), Hook: pool(8, 25, 128), Transfer: pool(64, 256, 192),
		}},
		"large": {3000, 3600, 3000, map[string]PoolConfig{
			Fleet: pool(25, 100, 512), Submit: pool(20, 80, 60), Query: pool(15, 60, 45), Hook: pool(20, 80, 256), Transfer: pool(128, 512, 384),
		}},
	}
}

// DefaultPreset is the one that a zero Config means.
const DefaultPreset = "medium"

// Presets names them, smallest first.
func Presets() []string { return []string{"small", "medium", "large"} }

// Preset returns the sizes of that name with all else at its default; false if
// there is no such preset.
func Preset(name string) (Config, bool) {
	p, ok := presets()[name]
	if !ok {
		return Config{}, false
	}
	c := Config{Limits: Limits{Soft: p.soft, Hard: p.hard, Reserved: 0.2}, Domains: domains()}
	for _, name := range []string{Fleet, Submit, Query, Hook, Transfer} {
		pool := p.pools[name]
		pool.Name, pool.Queue = name, p.queue
		c.Pools = append(c.Pools, pool)
	}
	return c.rest(), true
}

func domains() []DomainConfig {
	short := []string{Submit, Query, Hook}
	return []DomainConfig{
		{Name: Fleet, Priority: true, Pools: []string{Fleet}, Affinity: []string{Fleet}},
		{Name: Submit, Pools: short, Affinity: []string{Submit}},
		{Name: Query, Pools: short, Affinity: []string{Query}},
		{Name: Hook, Pools: short, Affinity: []string{Hook}},
		{Name: Transfer, Pools: []string{Transfer}, Affinity: []string{Transfer}},
	}
}

// Pool returns the settings of a pool, to be changed; nil if there is none.
func (c *Config) Pool(name string) *PoolConfig {
	for i := range c.Pools {
		if c.Pools[i].Name == name {
			return &c.Pools[i]
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	d, _ := Preset(DefaultPreset)
	if c.Limits == (Limits{}) {
		c.Limits = d.Limits
	}
	if len(c.Pools) == 0 {
		c.Pools = d.Pools
	}
	if len(c.Domains) == 0 {
		c.Domains = d.Domains
	}
	c.Pools = slices.Clone(c.Pools)
	return c.rest()
}

// rest fills in what presets agree on.
func (c Config) rest() Config {
	c.Name = cmp.Or(c.Name, "takt/heijunka")
	c.Wait = cmp.Or(c.Wait, 5*time.Second)
	c.RestartGap = cmp.Or(c.RestartGap, time.Second)
	c.Spill = cmp.Or(c.Spill, 0.85)
	c.Check = cmp.Or(c.Check, time.Second)
	c.Remind = cmp.Or(c.Remind, 5*time.Second)
	s, h, b, u := &c.Scaling, &c.Health, &c.Balance, &c.Burst
	s.Every = cmp.Or(s.Every, 5*time.Second)
	s.Up, s.Down = cmp.Or(s.Up, 0.8), cmp.Or(s.Down, 0.5)
	s.Gap = cmp.Or(s.Gap, time.Second)
	s.Linger = cmp.Or(s.Linger, 5*time.Second)
	h.Every = cmp.Or(h.Every, 10*time.Second)
	h.Timeout = cmp.Or(h.Timeout, 2*time.Second)
	h.Window = cmp.Or(h.Window, time.Minute)
	h.Busy, h.Errors, h.Critical = cmp.Or(h.Busy, 0.8), cmp.Or(h.Errors, 0.05), cmp.Or(h.Critical, 0.95)
	h.BackoffMin, h.BackoffMax = cmp.Or(h.BackoffMin, 100*time.Millisecond), cmp.Or(h.BackoffMax, 30*time.Second)
	b.Every = cmp.Or(b.Every, 5*time.Second)
	b.Below = cmp.Or(b.Below, 0.8)
	b.Gap = cmp.Or(b.Gap, 30*time.Second)
	u.Every = cmp.Or(u.Every, time.Second)
	u.Baseline = cmp.Or(u.Baseline, 60)
	u.Factor = cmp.Or(u.Factor, 10)
	u.Floor = cmp.Or(u.Floor, 20)
	u.Workers = cmp.Or(u.Workers, 5)
	u.Duration = cmp.Or(u.Duration, 5*time.Minute)
	u.Cooldown = cmp.Or(u.Cooldown, 30*time.Second)
	u.Cost = cmp.Or(u.Cost, 2.0)
	return c
}

// Validate names everything that is wrong with c, defaults filled in.
func (c Config) Validate() error {
	c = c.withDefaults()
	faults := []error{c.Limits.Validate()}
	for _, p := range c.Pools {
		if err := p.validate(); err != nil {
			faults = append(faults, fmt.Errorf("pool %s: %w", p.Name, err))
		}
	}
	for _, d := range c.Domains {
		if err := c.checkDomain(d); err != nil {
			faults = append(faults, fmt.Errorf("domain %s: %w", d.Name, err))
		}
	}
	for name, v := range map[string]float64{
		"spill": c.Spill, "scale-up": c.Scaling.Up, "scale-down": c.Scaling.Down, "balance below": c.Balance.Below,
		"degraded utilisation": c.Health.Busy, "critical utilisation": c.Health.Critical, "degraded error rate": c.Health.Errors,
	} {
		if !(v > 0 && v <= 1) {
			faults = append(faults, fmt.Errorf("%s: must be more than 0 and at most 1", name))
		}
	}
	if c.Scaling.Down >= c.Scaling.Up {
		faults = append(faults, errors.New("scale-down: must be below scale-up"))
	}
	for name, d := range map[string]time.Duration{
		"wait": c.Wait, "restart gap": c.RestartGap, "check": c.Check, "remind": c.Remind, "scaling interval": c.Scaling.Every,
		"scaling gap": c.Scaling.Gap, "linger": c.Scaling.Linger, "health interval": c.Health.Every, "ping time-out": c.Health.Timeout,
		"window": c.Health.Window, "balance interval": c.Balance.Every, "balance gap": c.Balance.Gap, "burst interval": c.Burst.Every,
		"burst duration": c.Burst.Duration, "burst cooldown": c.Burst.Cooldown, "backoff": c.Health.BackoffMin,
	} {
		if d < time.Millisecond {
			faults = append(faults, fmt.Errorf("%s: must be at least 1ms", name))
		}
	}
	if b := c.Burst; b.Factor < 1 || b.Floor < 1 || b.Workers < 1 || b.Baseline < 1 || b.Cost < 0 {
		faults = append(faults, errors.New("burst factor, floor, workers and baseline: must be at least 1"))
	}
	return errors.Join(faults...)
}

// Validate says what is wrong with l.
func (l Limits) Validate() error {
	switch {
	case l.Hard < 1 || l.Hard > maxHard:
		return fmt.Errorf("hard limit must be 1 to %d", maxHard)
	case l.Soft < 1 || l.Soft > l.Hard:
		return errors.New("soft limit must be 1 to the hard limit")
	case !(l.Reserved >= 0 && l.Reserved < 1):
		return errors.New("reserved must be at least 0 and less than 1")
	case l.Regular() < 1:
		return errors.New("hard limit must leave something unreserved")
	}
	return nil
}

// maxWorkers is the most that a pool may have, overflow aside.
const maxWorkers = 10_000

func (p PoolConfig) validate() error {
	switch {
	case p.Name == "":
		return errors.New("name must be set")
	case p.Min < 1 || p.Max > maxWorkers || p.Min > p.Max:
		return fmt.Errorf("workers must be at least 1 and at most %d, the minimum not above the maximum", maxWorkers)
	case p.Initial < p.Min || p.Initial > p.Max:
		return errors.New("initial workers must be within minimum and maximum")
	case p.Overflow < 0 || p.Overflow > maxWorkers || p.Queue < 0:
		return errors.New("overflow and queue must not be negative")
	}
	return nil
}

func (c *Config) checkDomain(d DomainConfig) error {
	if len(d.Pools) == 0 {
		return errors.New("needs a pool")
	}
	for _, name := range d.Pools {
		if c.Pool(name) == nil {
			return fmt.Errorf("no pool %q", name)
		}
	}
	return d.checkAffinity(d.Affinity)
}

func (d DomainConfig) checkAffinity(pools []string) error {
	for _, name := range pools {
		if !slices.Contains(d.Pools, name) {
			return fmt.Errorf("pool %q is not in its list", name)
		}
	}
	return nil
}
