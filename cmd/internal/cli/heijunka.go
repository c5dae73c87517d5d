package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"takt/http/api"
	"takt/store"
)

// PrintHeijunka shows the state of load levelling.
func PrintHeijunka(w io.Writer, l api.Heijunka) {
	r := l.Regulator
	if !l.Enabled {
		fmt.Fprintln(w, "off: requests are let through unlevelled")
	}
	fmt.Fprintf(w, "load      %d of %d (%d regular), %s; soft limit %d\n", r.Load, r.HardLimit, r.RegularLimit, r.Level, r.SoftLimit)
	fmt.Fprintf(w, "admitted  %d, refused %d, %.0f end per second\n", r.Accepted, r.RejectedRegular+r.RejectedHard, r.DrainRate)
	fmt.Fprintf(w, "balance   %.2f, %d places moved\n", l.Balance.Coefficient, l.Balance.Moves)
	fmt.Fprintf(w, "burst     %s\n\n", burst(l.Burst))
	rows := [][]string{{"POOL", "HEALTH", "PLACES", "BUSY", "USED", "WAITING", "LATENCY", "ERRORS", "DONE", "REFUSED", "BOUNDS"}}
	for _, p := range l.Pools {
		rows = append(rows, []string{
			store.Lines(p.Name), store.Lines(p.Health), fmt.Sprint(p.Workers), fmt.Sprint(p.Busy), fmt.Sprintf("%.0f%%", 100*p.Utilisation),
			fmt.Sprint(p.QueueLength), fmt.Sprintf("%.1fms", p.AverageLatencyMS), fmt.Sprintf("%.1f%%", 100*p.ErrorRate),
			fmt.Sprint(p.Processed), fmt.Sprint(p.Refused + p.Expired), fmt.Sprintf("%d..%d+%d", p.Min, p.Max, p.Overflow),
		})
	}
	Table(w, rows)
	if changed := changes(l); changed != nil {
		fmt.Fprintf(w, "\nchanged   %s\n", strings.Join(changed, "\n          "))
	}
}

// PrintHeijunkaChange shows the current changes, how to undo them, and the size of pools.
func PrintHeijunkaChange(w io.Writer, l api.Heijunka) {
	changed := changes(l)
	if l.Burst.Active {
		changed = append(changed, "burst: "+burst(l.Burst))
	}
	if changed == nil {
		changed = []string{"all as configured"}
	}
	var pools []string
	for _, p := range l.Pools {
		pools = append(pools, fmt.Sprintf("%s %d", store.Line(p.Name), p.Workers))
	}
	fmt.Fprintf(w, "%s\nplaces: %s\n", strings.Join(changed, "\n"), strings.Join(pools, ", "))
}

// changes lists what differs from the configuration, until when, and how to undo it.
func changes(l api.Heijunka) (out []string) {
	var s store.HeijunkaSettings
	if json.Unmarshal(l.Changed, &s) != nil {
		return nil
	}
	add := func(what string, e store.Expiry, undo string) {
		until := ""
		if e.Until != nil {
			until = " until " + Time(*e.Until)
		}
		out = append(out, store.Line(what)+until+" (undo: takt heijunka "+undo+")")
	}
	if b := s.Limits; b != nil {
		add(fmt.Sprintf("limits: soft %d, hard %d, reserved %.0f %%", b.Soft, b.Hard, 100*b.Reserved), b.Expiry, "limits --reset")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Bounds)) {
		b := s.Bounds[name]
		add(fmt.Sprintf("bounds of %s: %d to %d places", name, b.Min, b.Max), b.Expiry, "scale "+name+" --reset")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Affinity)) {
		a := s.Affinity[name]
		add(name+" prefers "+cmp.Or(strings.Join(a.Pools, ", "), "all pools of its list"), a.Expiry, "affinity "+name+" --reset")
	}
	if b := s.Burst; b != nil {
		add("bursts: "+map[bool]string{true: "looked for", false: "not looked for"}[b.Enabled], b.Expiry, "surge "+map[bool]string{true: "disable", false: "enable"}[b.Enabled])
	}
	return out
}

func burst(b api.HeijunkaBurst) string {
	text := fmt.Sprintf("demand %.2f, baseline %.2f, %d surges so far", b.Demand, b.Baseline, b.Events)
	switch {
	case b.Active && b.Until != nil:
		text = "surge until " + Time(b.Until.Time()) + "; " + text
	case !b.Enabled:
		text = "not looked for; " + text
	}
	return text
}

// PrintRebalance shows between which pools a place was moved, or why none was.
func PrintRebalance(w io.Writer, r api.HeijunkaRebalance) {
	switch {
	case r.Done:
		fmt.Fprintf(w, "moved a place from %s to %s: %s\n", store.Lines(r.From), store.Lines(r.To), store.Lines(r.Reason))
	case r.From != "":
		fmt.Fprintf(w, "would move a place from %s to %s: %s\n", store.Lines(r.From), store.Lines(r.To), store.Lines(r.Reason))
	default:
		fmt.Fprintf(w, "nothing to move: %s\n", store.Lines(r.Reason))
	}
	rows := [][]string{{"POOL", "USED", "PER PLACE", "PLACES", "BOUNDS"}}
	for _, p := range r.Pools {
		rows = append(rows, []string{
			store.Lines(p.Name), fmt.Sprintf("%.0f%%", 100*p.Utilisation), fmt.Sprintf("%.2f", p.Demand), fmt.Sprint(p.Workers), fmt.Sprintf("%d..%d", p.Min, p.Max),
		})
	}
	Table(w, rows)
}
