package settings

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"takt/actors/heijunka"
	"takt/store"
)

// HeijunkaConfig configures load levelling: a preset of sizes, and the values that differ
// from it.
type HeijunkaConfig struct {
	// Preset is small, medium or large.
	Preset string
	// Soft and Hard are limits; 0 means the preset's. Pools are sizes by pool name, also
	// on top of the preset's.
	Soft, Hard int
	Reserved   float64
	Pools      map[string]heijunka.PoolConfig
	// Off admits all requests without load levelling.
	Off bool
}

func defaultHeijunkaConfig() HeijunkaConfig {
	c, _ := heijunka.Preset(heijunka.DefaultPreset)
	return HeijunkaConfig{Preset: heijunka.DefaultPreset, Reserved: c.Limits.Reserved}
}

// Config returns the configuration of package heijunka.
func (l *HeijunkaConfig) Config() heijunka.Config {
	c, ok := heijunka.Preset(l.Preset)
	if !ok {
		c, _ = heijunka.Preset(heijunka.DefaultPreset) // validate reports the unknown preset
	}
	c.Limits = store.HeijunkaLimits{Soft: cmp.Or(l.Soft, c.Limits.Soft), Hard: cmp.Or(l.Hard, c.Limits.Hard), Reserved: l.Reserved}
	for name, p := range l.Pools {
		*c.Pool(name) = p
	}
	c.Off = l.Off
	return c
}

func (l *HeijunkaConfig) validate(bad func(name, format string, args ...any)) {
	if _, ok := heijunka.Preset(l.Preset); !ok {
		bad("heijunka-preset", "%q is not known: small, medium or large", l.Preset)
	}
	if err := l.Config().Validate(); err != nil {
		bad("heijunka", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// pools returns all pools in the form of the setting:
// NAME=initial/min/max/overflow/queue.
func (l *HeijunkaConfig) pools() string {
	c := l.Config()
	all := make([]string, 0, len(c.Pools))
	for _, p := range c.Pools {
		all = append(all, fmt.Sprintf("%s=%d/%d/%d/%d/%d", p.Name, p.Initial, p.Min, p.Max, p.Overflow, p.Queue))
	}
	return strings.Join(all, ",")
}

// setPools reads the pools that differ from the preset.
func (l *HeijunkaConfig) setPools(v string) error {
	l.Pools = map[string]heijunka.PoolConfig{}
	c := l.Config()
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
