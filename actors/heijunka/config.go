package heijunka

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"takt/store"
)

// Config has heijunka's settings. Zero values take the defaults; sizes take those of
// the preset medium. Make it with [Preset].
type Config struct {
	// Off lets every request through unlevelled.
	Off bool
	// Limits are the gate's.
	Limits store.HeijunkaLimits
	// Pools are where requests run: one for each domain, with its name.
	Pools []PoolConfig
	// Wait is how long a request waits for a place. Defaults to 5 s.
	Wait time.Duration

	// How often pools are scaled and balanced. Tests set them. Both default to 5 s.
	scaleEvery, balanceEvery time.Duration
}

// PoolConfig has the sizes of one pool, in places.
type PoolConfig struct {
	Name              string
	Initial, Min, Max int
	// Overflow is how many places may be lent while requests wait, beyond the size
	// that scaling has set.
	Overflow int
	// Queue is how many requests may wait for a place.
	Queue int
	// Priority requests are admitted up to the hard limit.
	Priority bool
	// Shared places are those of files, which their clients hold for long: credentials share
	// them, and a request waits for its place before it is admitted.
	Shared bool
	// List is the pools that requests of this domain may go to, besides its own.
	List []string
}

// The domains of takt.
const (
	Fleet    = "fleet"
	Submit   = "submit"
	Query    = "query"
	Hook     = "hook"
	Transfer = "transfer"
)

// DefaultPreset is the preset of a zero Config.
const DefaultPreset = "medium"

// Names lists takt's pools, which are also its domains.
func Names() []string { return []string{Fleet, Submit, Query, Hook, Transfer} }

// Preset returns the sizes of that name (small, medium or large) with all other settings
// at their defaults. It returns false if there is no such preset. A pool does not shrink
// below half of its initial size. Overflow takes it to its maximum at once when requests
// wait. The overflow of fleet and hook is larger, because polls and webhooks share
// transactions: more of them at once need fewer transactions.
func Preset(name string) (Config, bool) {
	type pool struct{ initial, most, overflow int }
	p, ok := map[string]struct {
		soft, hard, queue int
		pools             []pool // as Names
	}{
		"small":  {500, 600, 500, []pool{{5, 15, 128}, {4, 12, 8}, {4, 12, 8}, {4, 12, 64}, {16, 64, 48}}},
		"medium": {1000, 1200, 1000, []pool{{10, 30, 256}, {8, 25, 17}, {5, 20, 15}, {8, 25, 128}, {64, 256, 192}}},
		"large":  {3000, 3600, 3000, []pool{{25, 100, 512}, {20, 80, 60}, {15, 60, 45}, {20, 80, 256}, {128, 512, 384}}},
	}[name]
	if !ok {
		return Config{}, false
	}
	c := Config{Limits: store.HeijunkaLimits{Soft: p.soft, Hard: p.hard, Reserved: 0.2}}
	for i, name := range Names() {
		own := p.pools[i]
		c.Pools = append(c.Pools, PoolConfig{
			Name: name, Initial: own.initial, Min: (own.initial + 1) / 2, Max: own.most, Overflow: own.overflow, Queue: p.queue,
			Priority: name == Fleet, Shared: name == Transfer,
		})
		if short := []string{Submit, Query, Hook}; slices.Contains(short, name) {
			c.Pools[i].List = short // they take each other's overflow
		}
	}
	return c.withDefaults(), true
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
	if len(c.Pools) == 0 {
		d, _ := Preset(DefaultPreset)
		c.Limits, c.Pools = cmp.Or(c.Limits, d.Limits), d.Pools
	}
	c.Wait = cmp.Or(c.Wait, 5*time.Second)
	c.scaleEvery, c.balanceEvery = cmp.Or(c.scaleEvery, 5*time.Second), cmp.Or(c.balanceEvery, 5*time.Second)
	return c
}

// Validate reports every invalid value of c, after defaults are filled in.
func (c Config) Validate() error {
	c = c.withDefaults()
	faults := []error{c.Limits.Validate()}
	if c.Wait < time.Millisecond {
		faults = append(faults, errors.New("wait: must be at least 1ms"))
	}
	for _, p := range c.Pools {
		err := store.HeijunkaBounds{Min: p.Min, Max: p.Max}.Validate()
		switch {
		case p.Initial < p.Min || p.Initial > p.Max:
			err = errors.New("initial places must be within minimum and maximum")
		case p.Overflow < 0 || p.Overflow > store.MaxWorkers || p.Queue < 0:
			err = fmt.Errorf("overflow must be 0 to %d, and queue not negative", store.MaxWorkers)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("pool %s: %w", p.Name, err))
		}
	}
	return errors.Join(faults...)
}
