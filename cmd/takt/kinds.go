package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"takt/actors/janitor"
)

// value shows and sets what a setting is about, as text.
type value struct {
	get func(*Config) string
	set func(*Config, string) error
}

// parsed is a field that is shown and read by these two.
func parsed[T any](field func(*Config) *T, show func(T) string, read func(string) (T, error)) value {
	return value{
		get: func(c *Config) string { return show(*field(c)) },
		set: func(c *Config, text string) error {
			v, err := read(text)
			if err == nil {
				*field(c) = v
			}
			return err
		},
	}
}

func text(field func(*Config) *string) value {
	return parsed(field, func(v string) string { return v }, func(v string) (string, error) { return v, nil })
}

func number(field func(*Config) *int) value {
	return parsed(field, strconv.Itoa, func(v string) (int, error) {
		n, err := strconv.Atoi(v)
		return n, saying(err, "must be a whole number")
	})
}

// fraction takes a number that need not be whole.
func fraction(field func(*Config) *float64) value {
	show := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return parsed(field, show, func(v string) (float64, error) {
		n, err := strconv.ParseFloat(v, 64)
		return n, saying(err, "must be a number")
	})
}

// boolean takes "true" and "false".
func boolean(field func(*Config) *bool) value {
	return parsed(field, strconv.FormatBool, func(v string) (bool, error) {
		b, err := strconv.ParseBool(v)
		return b, saying(err, "must be true or false")
	})
}

// switchedOff takes "on" and "off" for a field that says that it is off.
func switchedOff(field func(*Config) *bool) value {
	show := func(off bool) string { return map[bool]string{true: "off", false: "on"}[off] }
	return parsed(field, show, func(v string) (bool, error) {
		if v != "on" && v != "off" {
			return false, errors.New("must be on or off")
		}
		return v == "off", nil
	})
}

func duration(field func(*Config) *time.Duration) value {
	return parsed(field, showDuration, readDuration)
}

// readDuration takes "90s" or "5m", and a bare number as seconds.
func readDuration(v string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(v, 64); err == nil {
		return time.Duration(n * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(v)
	return d, saying(err, `must be a duration such as "90s" or "5m"`)
}

// showDuration writes 5m, not 5m0s.
func showDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// networks takes a list such as "10.0.0.0/8, 192.0.2.1".
func networks(field func(*Config) *[]netip.Prefix) value {
	show := func(list []netip.Prefix) string {
		var texts []string
		for _, p := range list {
			texts = append(texts, p.String())
		}
		return strings.Join(texts, ",")
	}
	return parsed(field, show, readNetworks)
}

func readNetworks(v string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for entry := range strings.SplitSeq(v, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		p, err := netip.ParsePrefix(entry)
		if err != nil {
			addr, err := netip.ParseAddr(entry)
			if err != nil {
				return nil, fmt.Errorf("%q is no network: want 10.0.0.0/8 or an address", entry)
			}
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		list = append(list, p.Masked())
	}
	return list, nil
}

// retention takes a list such as "source=720h,logs=2160h".
func retention(field func(*Config) *janitor.Retention) value {
	return parsed(field, showRetention, readRetention)
}

// kept is one kind of things that the janitor removes.
type kept struct {
	name string
	time *time.Duration
}

func keptKinds(r *janitor.Retention) []kept {
	return []kept{{"source", &r.Source}, {"certs", &r.Certs}, {"result", &r.Result}, {"logs", &r.Logs}, {"diagnostics", &r.Diagnostics}}
}

func showRetention(r janitor.Retention) string {
	var texts []string
	for _, k := range keptKinds(&r) {
		if *k.time != 0 {
			texts = append(texts, k.name+"="+showDuration(*k.time))
		}
	}
	return strings.Join(texts, ",")
}

func readRetention(v string) (r janitor.Retention, err error) {
	for entry := range strings.SplitSeq(v, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, text, _ := strings.Cut(entry, "=")
		var field *time.Duration
		for _, k := range keptKinds(&r) {
			if k.name == name {
				field = k.time
			}
		}
		if field == nil {
			return r, fmt.Errorf("%q is not KIND=TIME with a kind of source, certs, result, logs and diagnostics", entry)
		}
		*field, err = readDuration(text)
		if err = cmp.Or(err, negative(*field)); err != nil {
			return r, fmt.Errorf("%s: %w", name, err)
		}
	}
	return r, nil
}

func negative(d time.Duration) error {
	if d < 0 {
		return errors.New("must be at least 0")
	}
	return nil
}

// saying replaces an error by one for people.
func saying(err error, text string) error {
	if err == nil {
		return nil
	}
	return errors.New(text)
}
