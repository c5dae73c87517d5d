package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"takt/cmd/internal/cli"
)

const (
	// most is what a victim's p99 may be whatever it was before.
	most = 100 * time.Millisecond
	// answered is within what time operators and probes are.
	answered = time.Second
)

// row is what an attack did to others.
type row struct {
	Attack string `json:"attack"`
	Mode   string `json:"mode"`
	Who    string `json:"who"`
	// P50 and P99 are before, during and after the attack, in milliseconds.
	P50     [3]float64     `json:"p50"`
	P99     [3]float64     `json:"p99"`
	Refused int            `json:"refused"`
	Why     map[string]int `json:"why,omitempty"`
	// Longest are the longest times of operators and probes, in milliseconds.
	Longest [2]float64 `json:"longest"`
	// Memory and Disk are the most that the worker took, in bytes.
	Memory int64    `json:"memory,omitempty"`
	Disk   int64    `json:"disk,omitempty"`
	Broken []string `json:"broken"`
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// judge compares what was measured with what is promised.
func judge(a attack, mode string, m *measured, timed bool) row {
	r := row{Attack: a.name, Mode: mode, Broken: []string{}, Why: map[string]int{}, Memory: m.memory.Load(), Disk: m.disk.Load()}
	broke := func(format string, args ...any) { r.Broken = append(r.Broken, fmt.Sprintf(format, args...)) }
	for who, s := range map[string]*series{"the victim": &m.victim, "the operator": &m.operator, "a probe": &m.probes, "a receiver": &m.notices} {
		if n, why := s.between(m.first, m.over).refused(); n > 0 {
			r.Refused += n
			maps.Copy(r.Why, why)
			broke("%s was refused %d times", who, n)
		}
	}
	phases := func(s *series) [3]samples {
		return [3]samples{s.between(m.first, m.began), s.between(m.began, m.ended), s.between(m.settled, m.over)}
	}
	compare := func(who string, s *series) (p50, p99 [3]float64) {
		p := phases(s)
		for i := range p {
			p50[i], p99[i] = ms(p[i].quantile(.5)), ms(p[i].quantile(.99))
		}
		limit := max(3*p[0].quantile(.99), most)
		if mode == limited && timed && p[1].quantile(.99) > limit {
			broke("%s: p99 of %.0f ms, %.0f ms before (%s)", who, p99[1], p99[0], p[1].slowest())
		}
		if timed && p[2].quantile(.99) > limit {
			broke("%s: p99 of %.0f ms after the attack, %.0f ms before (%s)", who, p99[2], p99[0], p[2].slowest())
		}
		return p50, p99
	}
	r.P50, r.P99 = compare("the victim", &m.victim)
	if len(m.notices.all) > 0 {
		compare("notices", &m.notices)
		p := phases(&m.notices)
		r.Who = fmt.Sprintf("notices: p99 %.0f, %.0f, %.0f ms", ms(p[0].quantile(.99)), ms(p[1].quantile(.99)), ms(p[2].quantile(.99)))
	}
	for i, s := range []*series{&m.operator, &m.probes} {
		p := phases(s)
		longest := max(p[1].quantile(1), p[2].quantile(1))
		r.Longest[i] = ms(longest)
		if timed && (mode == limited && longest > answered || p[2].quantile(1) > answered) {
			broke("%s waited %.1f s", []string{"the operator", "a probe"}[i], longest.Seconds())
		}
	}
	if a.worker {
		r.Who = fmt.Sprintf("worker: %s of memory, %s of disk", humanize.IBytes(uint64(r.Memory)), humanize.IBytes(uint64(r.Disk)))
		if r.Memory > memoryLimit {
			broke("the worker took %s of memory", humanize.IBytes(uint64(r.Memory)))
		}
		if r.Disk > diskLimit {
			broke("the worker took %s of disk", humanize.IBytes(uint64(r.Disk)))
		}
	}
	slices.Sort(r.Broken)
	return r
}

// table prints the rows, and what was wrong.
func table(rows []row) func(w io.Writer) {
	return func(w io.Writer) {
		three := func(t [3]float64) string { return fmt.Sprintf("%.0f, %.0f, %.0f", t[0], t[1], t[2]) }
		cli.List(w, []string{"ATTACK", "ATTACKER", "P50 MS", "P99 MS", "REFUSED", "OPERATOR MS", "PROBES MS", "KEPT"}, rows, func(r row) []string {
			kept := "yes"
			if len(r.Broken) > 0 {
				kept = "NO"
			}
			return []string{
				r.Attack, r.Mode, three(r.P50), three(r.P99), fmt.Sprint(r.Refused),
				fmt.Sprintf("%.0f", r.Longest[0]), fmt.Sprintf("%.0f", r.Longest[1]), kept,
			}
		})
		fmt.Fprintln(w, "\nThe victim's times are those before, during and after the attack; those of operator and probes are the longest since it began.")
		for _, r := range rows {
			if r.P99[0] > ms(answered)/2 {
				fmt.Fprintf(w, "%s, %s: p99 was %.0f ms before the attack: the machine does something else, too\n", r.Attack, r.Mode, r.P99[0])
			}
			if r.Who != "" {
				fmt.Fprintf(w, "%s, %s: %s\n", r.Attack, r.Mode, r.Who)
			}
			if len(r.Broken) > 0 {
				fmt.Fprintf(w, "%s, %s: BROKEN: %s\n", r.Attack, r.Mode, strings.Join(r.Broken, "; "))
			}
			for _, why := range slices.Sorted(maps.Keys(r.Why)) {
				fmt.Fprintf(w, "  %d × %s\n", r.Why[why], why)
			}
		}
	}
}
