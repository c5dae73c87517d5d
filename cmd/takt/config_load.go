package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"takt/actors/heijunka"
)

// LoadConfig is load levelling: a preset of sizes, and what differs from it.
type LoadConfig struct {
	// Preset is small, medium or large.
	Preset string
	// Soft and Hard are limits, 0 for the preset's; Pools likewise by name.
	Soft, Hard int
	Pools      map[string]heijunka.PoolConfig
	// Rest has all else; its limits (but for Reserved) and pools are not used.
	Rest heijunka.Config
}

func defaultLoadConfig() LoadConfig {
	c, _ := heijunka.Preset(heijunka.DefaultPreset)
	c.Pools, c.Domains = nil, nil
	return LoadConfig{Preset: heijunka.DefaultPreset, Rest: c}
}

// config is what heijunka runs with.
func (l *LoadConfig) config() heijunka.Config {
	c := l.Rest
	preset, ok := heijunka.Preset(l.Preset)
	if !ok {
		preset, _ = heijunka.Preset(heijunka.DefaultPreset) // validate tells
	}
	c.Domains, c.Pools = preset.Domains, preset.Pools
	c.Limits.Soft, c.Limits.Hard = preset.Limits.Soft, preset.Limits.Hard
	if l.Soft != 0 {
		c.Limits.Soft = l.Soft
	}
	if l.Hard != 0 {
		c.Limits.Hard = l.Hard
	}
	for name, p := range l.Pools {
		*c.Pool(name) = p
	}
	return c
}

func (l *LoadConfig) validate() []error {
	var faults []error
	if _, ok := heijunka.Preset(l.Preset); !ok {
		faults = append(faults, fmt.Errorf("heijunka-preset: %q is not known: %s", l.Preset, strings.Join(heijunka.Presets(), ", ")))
	}
	if err := l.config().Validate(); err != nil {
		faults = append(faults, fmt.Errorf("heijunka: %s", strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return faults
}

// real takes a number with a fraction.
func real(field func(*Config) *float64) (func(*Config) string, func(*Config, string) error) {
	return func(c *Config) string { return strconv.FormatFloat(*field(c), 'g', -1, 64) },
		func(c *Config, v string) error {
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				return errors.New("must be a number")
			}
			*field(c) = n
			return nil
		}
}

// sizesOf shows a pool as it is written: initial/min/max/overflow/queue.
func sizesOf(p heijunka.PoolConfig) string {
	return fmt.Sprintf("%d/%d/%d/%d/%d", p.Initial, p.Min, p.Max, p.Overflow, p.Queue)
}

func parseSizes(name, v string) (heijunka.PoolConfig, error) {
	p := heijunka.PoolConfig{Name: name}
	parts := strings.Split(v, "/")
	fields := []*int{&p.Initial, &p.Min, &p.Max, &p.Overflow, &p.Queue}
	if len(parts) != len(fields) {
		return p, errors.New("must be initial/min/max/overflow/queue, such as 10/5/30/256/1000")
	}
	for i, part := range parts {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return p, errors.New("must be initial/min/max/overflow/queue, whole numbers")
		}
		*fields[i] = n
	}
	return p, nil
}

// loadSettings are the settings of load levelling.
func loadSettings() []setting {
	var out []setting
	add := func(name, usage string, get func(*Config) string, set func(*Config, string) error) {
		name = "heijunka" + name
		env := "TAKT_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		out = append(out, setting{name: name, usage: usage, get: get, set: set, env: []string{env}})
	}
	num := func(name, usage string, f func(*heijunka.Config) *int) {
		get, set := number(func(c *Config) *int { return f(&c.Load.Rest) })
		add(name, usage, get, set)
	}
	frac := func(name, usage string, f func(*heijunka.Config) *float64) {
		get, set := real(func(c *Config) *float64 { return f(&c.Load.Rest) })
		add(name, usage, get, set)
	}
	dur := func(name, usage string, f func(*heijunka.Config) *time.Duration) {
		get, set := duration(func(c *Config) *time.Duration { return f(&c.Load.Rest) })
		add(name, usage, get, set)
	}
	type cfg = heijunka.Config
	add("", "on, or off: requests are let through unlevelled", showSwitch, setSwitch)
	get, set := text(func(c *Config) *string { return &c.Load.Preset })
	add("-preset", "sizes of limits and pools: small, medium or large", get, set)
	_, set = number(func(c *Config) *int { return &c.Load.Soft })
	add("-soft-limit", "admitted requests from which the load is critical", func(c *Config) string { return strconv.Itoa(c.Load.config().Limits.Soft) }, set)
	_, set = number(func(c *Config) *int { return &c.Load.Hard })
	add("-hard-limit", "most requests that are admitted at once", func(c *Config) string { return strconv.Itoa(c.Load.config().Limits.Hard) }, set)
	frac("-reserved", "share of the limits that is for workers' requests", func(c *cfg) *float64 { return &c.Limits.Reserved })
	for _, name := range []string{heijunka.Fleet, heijunka.Submit, heijunka.Query, heijunka.Hook, heijunka.Transfer} {
		add("-"+name, "pool "+name+": initial/min/max/overflow/queue", func(c *Config) string {
			config := c.Load.config()
			return sizesOf(*config.Pool(name))
		}, func(c *Config, v string) error {
			p, err := parseSizes(name, v)
			if err != nil {
				return err
			}
			if c.Load.Pools == nil {
				c.Load.Pools = map[string]heijunka.PoolConfig{}
			}
			c.Load.Pools[name] = p
			return nil
		})
	}
	dur("-wait", "longest wait for a slot", func(c *cfg) *time.Duration { return &c.Wait })
	dur("-restart-gap", "longest wait for a pool without workers", func(c *cfg) *time.Duration { return &c.RestartGap })
	frac("-spill", "utilisation above which another pool of the list is taken", func(c *cfg) *float64 { return &c.Spill })
	dur("-check", "time between two looks at the load", func(c *cfg) *time.Duration { return &c.Check })
	dur("-remind", "time after which a raised load is told again", func(c *cfg) *time.Duration { return &c.Remind })
	dur("-scale-interval", "time between two looks at a pool's utilisation", func(c *cfg) *time.Duration { return &c.Scaling.Every })
	frac("-scale-up", "utilisation above which a worker is added", func(c *cfg) *float64 { return &c.Scaling.Up })
	frac("-scale-down", "utilisation below which a worker is removed", func(c *cfg) *float64 { return &c.Scaling.Down })
	dur("-scale-gap", "least time between two changes of a pool", func(c *cfg) *time.Duration { return &c.Scaling.Gap })
	dur("-linger", "time that overflow workers stay idle", func(c *cfg) *time.Duration { return &c.Scaling.Linger })
	dur("-health-interval", "time between two rounds of pings", func(c *cfg) *time.Duration { return &c.Health.Every })
	dur("-ping-timeout", "time that a worker has to answer", func(c *cfg) *time.Duration { return &c.Health.Timeout })
	dur("-window", "time over which latencies and errors are averaged", func(c *cfg) *time.Duration { return &c.Health.Window })
	frac("-degraded-utilisation", "utilisation above which a pool is degraded", func(c *cfg) *float64 { return &c.Health.Busy })
	frac("-degraded-errors", "error rate above which a pool is degraded", func(c *cfg) *float64 { return &c.Health.Errors })
	frac("-critical-utilisation", "utilisation above which a pool is critical", func(c *cfg) *float64 { return &c.Health.Critical })
	dur("-backoff-min", "first delay before a crashed worker is replaced", func(c *cfg) *time.Duration { return &c.Health.BackoffMin })
	dur("-backoff-max", "longest delay", func(c *cfg) *time.Duration { return &c.Health.BackoffMax })
	dur("-balance-interval", "time between two looks at the balance", func(c *cfg) *time.Duration { return &c.Balance.Every })
	frac("-balance-below", "coefficient below which a worker is moved", func(c *cfg) *float64 { return &c.Balance.Below })
	dur("-balance-gap", "least time between two moves", func(c *cfg) *time.Duration { return &c.Balance.Gap })
	dur("-burst-interval", "time between two samples of demand", func(c *cfg) *time.Duration { return &c.Burst.Every })
	num("-burst-baseline", "samples of which the mean is taken", func(c *cfg) *int { return &c.Burst.Baseline })
	frac("-burst-factor", "a burst is so many times the baseline", func(c *cfg) *float64 { return &c.Burst.Factor })
	num("-burst-floor", "fewest requests that are a burst", func(c *cfg) *int { return &c.Burst.Floor })
	num("-surge-workers", "workers that each pool gets in a surge", func(c *cfg) *int { return &c.Burst.Workers })
	dur("-surge-duration", "length of a surge", func(c *cfg) *time.Duration { return &c.Burst.Duration })
	dur("-surge-cooldown", "least time from one surge to the next", func(c *cfg) *time.Duration { return &c.Burst.Cooldown })
	frac("-surge-cost", "what a surge worker costs", func(c *cfg) *float64 { return &c.Burst.Cost })
	return out
}

func showSwitch(c *Config) string {
	if c.Load.Rest.Off {
		return "off"
	}
	return "on"
}

func setSwitch(c *Config, v string) error {
	if v != "on" && v != "off" {
		return errors.New("must be on or off")
	}
	c.Load.Rest.Off = v == "off"
	return nil
}
