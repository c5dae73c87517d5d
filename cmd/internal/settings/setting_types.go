package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"takt/actors/deployment"
	"takt/actors/janitor"
	"takt/cmd/internal/cli"
	"takt/store"
)

// value shows and sets a setting's field as text.
type value struct {
	Get func() string
	set func(string) error
}

// parsed returns a value for a field, with a function to show it and one to read it.
func parsed[T any](field *T, show func(T) string, read func(string) (T, error)) value {
	return value{
		Get: func() string { return show(*field) },
		set: func(text string) error {
			v, err := read(text)
			if err == nil {
				*field = v
			}
			return err
		},
	}
}

// plain is like parsed, for a text that the standard library reads. It reports what was
// wanted instead of the library's error, because that error would repeat the text, which
// may be a secret.
func plain[T any](field *T, wanted string, read func(string) (T, error)) value {
	return parsed(field, func(v T) string { return fmt.Sprint(v) }, func(text string) (T, error) {
		v, err := read(text)
		if err != nil {
			err = errors.New("must be " + wanted)
		}
		return v, err
	})
}

func text(field *string) value {
	return plain(field, "text", func(v string) (string, error) { return v, nil })
}

func number(field *int) value { return plain(field, "a whole number", strconv.Atoi) }

// fraction takes a number with or without decimals.
func fraction(field *float64) value {
	return plain(field, "a number", func(v string) (float64, error) { return strconv.ParseFloat(v, 64) })
}

func boolean(field *bool) value { return plain(field, "true or false", strconv.ParseBool) }

// switchedOff takes "on" and "off" for a field that is true when something is off.
func switchedOff(field *bool) value {
	show := func(off bool) string { return map[bool]string{true: "off", false: "on"}[off] }
	return parsed(field, show, func(v string) (bool, error) {
		if v != "on" && v != "off" {
			return false, errors.New("must be on or off")
		}
		return v == "off", nil
	})
}

// quarantine takes "3/10" and "off".
func quarantine(field *store.QuarantineRule) value {
	show := func(r store.QuarantineRule) string {
		if r.Faults == 0 {
			return "off"
		}
		return fmt.Sprintf("%d/%d", r.Faults, r.Attempts)
	}
	return parsed(field, show, func(v string) (r store.QuarantineRule, err error) {
		if v == "off" {
			return r, nil
		}
		k, n, _ := strings.Cut(v, "/")
		r.Faults, err = strconv.Atoi(k)
		if err == nil {
			r.Attempts, err = strconv.Atoi(n)
		}
		if err != nil || r.Faults < 1 || r.Attempts < r.Faults || r.Attempts > store.MaxQuarantineAttempts {
			return r, fmt.Errorf("must be off, or K/N such as 3/10 with 1 <= K <= N <= %d", store.MaxQuarantineAttempts)
		}
		return r, nil
	})
}

// platforms takes names separated by commas.
func platforms(field *[]store.Platform) value {
	return parsed(field, joined(func(p store.Platform) string { return string(p) }), func(v string) (all []store.Platform, err error) {
		for name := range strings.SplitSeq(v, ",") {
			p := store.Platform(strings.TrimSpace(name))
			if !p.Valid() || slices.Contains(all, p) {
				return nil, errors.New("must be different names of 1 to 32 of a-z, 0-9 and -, separated by commas, such as ios,android,linux")
			}
			all = append(all, p)
		}
		return all, nil
	})
}

// limit takes a duration and "off", which is 0.
func limit(field *time.Duration) value {
	show := func(d time.Duration) string {
		if d == 0 {
			return "off"
		}
		return cli.DurationText(d)
	}
	return parsed(field, show, func(v string) (time.Duration, error) {
		if v == "off" {
			return 0, nil
		}
		d, err := cli.ParseDuration(v)
		if err == nil && d < time.Second {
			err = errors.New("must be off or at least 1s")
		}
		return d, err
	})
}

func duration(field *time.Duration) value { return parsed(field, cli.DurationText, cli.ParseDuration) }

// entries returns the parts of a list such as "a, b", without empty ones.
func entries(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// joined shows entries, parted by commas.
func joined[T any](show func(T) string) func([]T) string {
	return func(all []T) string {
		var texts []string
		for _, one := range all {
			texts = append(texts, show(one))
		}
		return strings.Join(texts, ",")
	}
}

// list takes entries that are parted by commas.
func list[T any](field *[]T, show func(T) string, read func(entry string) (T, error)) value {
	return parsed(field, joined(show), func(v string) (all []T, err error) {
		for _, entry := range entries(v) {
			one, err := read(entry)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
		return all, nil
	})
}

// networks takes a list such as "10.0.0.0/8, 192.0.2.1".
func networks(field *[]netip.Prefix) value {
	return list(field, netip.Prefix.String, func(entry string) (netip.Prefix, error) {
		p, err := netip.ParsePrefix(entry)
		if addr, notAddr := netip.ParseAddr(entry); notAddr == nil {
			p, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return p, fmt.Errorf("%q is no network: want 10.0.0.0/8 or an address", entry)
		}
		return p.Masked(), nil
	})
}

// pairs takes a list such as "acme=acme-mirror,lab=acme-mirror".
func pairs(field *[]deployment.Pair) value {
	return list(field, func(p deployment.Pair) string { return p.Source + "=" + p.Target }, func(entry string) (p deployment.Pair, err error) {
		if p.Source, p.Target, _ = strings.Cut(entry, "="); !p.Valid() {
			err = fmt.Errorf("%q is not SOURCE=TARGET, two organisations", entry)
		}
		return p, err
	})
}

// keptKinds returns the kinds of things that the janitor removes, and for each the field
// with its retention time.
func keptKinds(r *janitor.Retention) ([]string, map[string]*time.Duration) {
	return []string{"source", "certs", "result", "logs", "diagnostics"}, map[string]*time.Duration{
		"source": &r.Source, "certs": &r.Certs, "result": &r.Result, "logs": &r.Logs, "diagnostics": &r.Diagnostics,
	}
}

// retention takes a list such as "source=720h,logs=2160h".
func retention(field *janitor.Retention) value {
	show := func(r janitor.Retention) string {
		var texts []string
		names, times := keptKinds(&r)
		for _, name := range names {
			if d := *times[name]; d != 0 {
				texts = append(texts, name+"="+cli.DurationText(d))
			}
		}
		return strings.Join(texts, ",")
	}
	return parsed(field, show, func(v string) (r janitor.Retention, err error) {
		names, times := keptKinds(&r)
		for _, entry := range entries(v) {
			name, text, _ := strings.Cut(entry, "=")
			kept := times[name]
			if kept == nil {
				return r, fmt.Errorf("%q is not KIND=TIME with a kind of %s", entry, strings.Join(names, ", "))
			}
			*kept, err = cli.ParseDuration(text)
			if err == nil && *kept < 0 {
				err = errors.New("must be at least 0")
			}
			if err != nil {
				return r, fmt.Errorf("%s: %w", name, err)
			}
		}
		return r, nil
	})
}

// serviceList takes names of services. It shows them in their usual order, each once.
func serviceList(field *[]string) value {
	show := func(list []string) string { return strings.Join(list, ",") }
	return parsed(field, show, func(v string) (list []string, err error) {
		wanted := entries(v)
		all := ServiceNames()
		for _, name := range wanted {
			if !slices.Contains(all, name) {
				return nil, fmt.Errorf("%q is not a service: want one or more of %s", name, strings.Join(all, ","))
			}
		}
		if len(wanted) == 0 {
			return nil, errors.New("must name at least one service: " + strings.Join(all, ","))
		}
		return slices.DeleteFunc(all, func(name string) bool { return !slices.Contains(wanted, name) }), nil
	})
}
