package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"takt/actors/heijunka"
	"takt/store"
)

// LoadConfig is load levelling: a preset of sizes, and what differs from it.
type LoadConfig struct {
	// Preset is small, medium or large.
	Preset string
	// Soft and Hard are limits, 0 for the preset's; Pools likewise by name.
	Soft, Hard int
	Reserved   float64
	Pools      map[string]heijunka.PoolConfig
	Wait       time.Duration
	// Off lets all requests through unlevelled.
	Off bool
}

func defaultLoadConfig() LoadConfig {
	c, _ := heijunka.Preset(heijunka.DefaultPreset)
	return LoadConfig{Preset: heijunka.DefaultPreset, Reserved: c.Limits.Reserved, Wait: c.Wait}
}

// config is what heijunka runs with.
func (l *LoadConfig) config() heijunka.Config {
	c, ok := heijunka.Preset(l.Preset)
	if !ok {
		c, _ = heijunka.Preset(heijunka.DefaultPreset) // validate tells
	}
	c.Limits = store.LoadLimits{Soft: l.limit(l.Soft, c.Limits.Soft), Hard: l.limit(l.Hard, c.Limits.Hard), Reserved: l.Reserved}
	for name, p := range l.Pools {
		*c.Pool(name) = p
	}
	c.Wait, c.Off = l.Wait, l.Off
	return c
}

func (l *LoadConfig) limit(own, preset int) int {
	if own != 0 {
		return own
	}
	return preset
}

func (l *LoadConfig) validate() []error {
	var faults []error
	if _, ok := heijunka.Preset(l.Preset); !ok {
		faults = append(faults, fmt.Errorf("heijunka-preset: %q is not known: small, medium or large", l.Preset))
	}
	if err := l.config().Validate(); err != nil {
		faults = append(faults, fmt.Errorf("heijunka: %s", strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return faults
}

// pools shows all pools as they are written: NAME=initial/min/max/overflow/queue.
func (l *LoadConfig) pools() string {
	c := l.config()
	all := make([]string, 0, len(c.Pools))
	for _, p := range c.Pools {
		all = append(all, fmt.Sprintf("%s=%d/%d/%d/%d/%d", p.Name, p.Initial, p.Min, p.Max, p.Overflow, p.Queue))
	}
	return strings.Join(all, ",")
}

// setPools takes those that are to differ from the preset.
func (l *LoadConfig) setPools(v string) error {
	l.Pools = map[string]heijunka.PoolConfig{}
	c := l.config()
	for item := range strings.SplitSeq(v, ",") {
		name, sizes, _ := strings.Cut(strings.TrimSpace(item), "=")
		if c.Pool(name) == nil {
			return fmt.Errorf("there is no pool %q: %s", name, strings.Join(heijunka.Names(), ", "))
		}
		p := heijunka.PoolConfig{Name: name}
		fields, parts := []*int{&p.Initial, &p.Min, &p.Max, &p.Overflow, &p.Queue}, strings.Split(sizes, "/")
		if len(parts) != len(fields) {
			return errors.New("must be NAME=initial/min/max/overflow/queue, such as fleet=10/5/30/256/1000")
		}
		for i, part := range parts {
			n, err := strconv.Atoi(part)
			if err != nil {
				return errors.New("initial/min/max/overflow/queue must be whole numbers")
			}
			*fields[i] = n
		}
		l.Pools[name] = p
	}
	return nil
}

// loadSettings are the settings of load levelling.
func loadSettings() []setting {
	var out []setting
	add := func(name, usage string, get func(*Config) string, set func(*Config, string) error) {
		name = "heijunka" + name
		env := "TAKT_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		out = append(out, setting{name: name, usage: usage, get: get, set: set, env: []string{env}})
	}
	get, set := onOff(func(c *Config) *bool { return &c.Load.Off })
	add("", "on, or off: requests are let through unlevelled", get, set)
	get, set = text(func(c *Config) *string { return &c.Load.Preset })
	add("-preset", "sizes of limits and pools: small, medium or large", get, set)
	_, set = number(func(c *Config) *int { return &c.Load.Soft })
	add("-soft-limit", "admitted requests from which the load is critical", func(c *Config) string { return strconv.Itoa(c.Load.config().Limits.Soft) }, set)
	_, set = number(func(c *Config) *int { return &c.Load.Hard })
	add("-hard-limit", "most requests that are admitted at once", func(c *Config) string { return strconv.Itoa(c.Load.config().Limits.Hard) }, set)
	get, set = real(func(c *Config) *float64 { return &c.Load.Reserved })
	add("-reserved", "share of the limits that is for workers' requests", get, set)
	add("-pools", "pools that differ from the preset: NAME=initial/min/max/overflow/queue, by commas",
		func(c *Config) string { return c.Load.pools() }, func(c *Config, v string) error { return c.Load.setPools(v) })
	get, set = duration(func(c *Config) *time.Duration { return &c.Load.Wait })
	add("-wait", "longest wait for a place", get, set)
	return out
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

// onOff is a switch whose field says that it is off.
func onOff(field func(*Config) *bool) (func(*Config) string, func(*Config, string) error) {
	return func(c *Config) string { return map[bool]string{true: "off", false: "on"}[*field(c)] },
		func(c *Config, v string) error {
			if v != "on" && v != "off" {
				return errors.New("must be on or off")
			}
			*field(c) = v == "off"
			return nil
		}
}
