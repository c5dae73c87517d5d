package operating

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/store"
)

// Heijunka returns takt heijunka.
func Heijunka(env cli.Environment) *cobra.Command {
	changed := cli.Text(printHeijunkaChange)
	return cli.Group(cli.Row(env, &cobra.Command{
		Use: "heijunka", Short: "Show and change the load levelling",
		Long: `Show the load levelling: admission, pools, balance and bursts. The commands below
change it; each needs a reason, which is audited. Changes of limits, bounds and
affinity are saved and apply to all controllers; with --for they end by themselves.
Needs the admin key in TAKT_ADMIN_KEY.`,
	}, cli.Ask(api.ShowHeijunka), cli.Text(printHeijunka), nil),
		cli.Row(env, &cobra.Command{Use: "limits --reason TEXT", Short: "Change the limits of admission"}, cli.Order(api.ChangeHeijunkaLimits), changed, func(in *api.HeijunkaLimits, f *cli.Flags) {
			cli.Given(f, &in.SoftLimit, "soft", f.Int("soft", 0, "load at which it becomes critical"))
			cli.Given(f, &in.HardLimit, "hard", f.Int("hard", 0, "maximum number of requests admitted at once"))
			cli.Given(f, &in.Reserved, "reserved", f.Float64("reserved", 0, "share reserved for workers' requests, 0 to 1"))
			f.BoolVar(&in.Reset, "reset", false, "restore the configured limits")
			f.Command.PreRunE = func(cmd *cobra.Command, _ []string) error {
				if in.Reset || f.Changed("soft") || f.Changed("hard") || f.Changed("reserved") {
					return nil
				}
				return cli.Usage("nothing to change: give --soft, --hard, --reserved or --reset, and --reason; %s shows the limits", cmd.Parent().CommandPath())
			}
			change(f, &in.For, &in.Reason)
		}),
		cli.Row(env, &cobra.Command{
			Use: "scale POOL --reason TEXT", Short: "Change the size of a pool, or its bounds",
			Long: `Change the number of a pool's places on this controller, with --by or --workers;
scaling continues from there. Or change its bounds with --min and --max; equal bounds
fix the size. --reset restores the configured bounds.`,
		}, cli.Order(api.ScalePool), changed, func(in *api.ScalePoolIn, f *cli.Flags) {
			cli.Arg(f, &in.Name)
			cli.Given(f, &in.Body.By, "by", f.Int("by", 0, "add this many places; negative removes some"))
			cli.Given(f, &in.Body.Workers, "workers", f.Int("workers", 0, "set this many places"))
			cli.Given(f, &in.Body.Min, "min", f.Int("min", 0, "minimum number of places"))
			cli.Given(f, &in.Body.Max, "max", f.Int("max", 0, "maximum number of places"))
			f.BoolVar(&in.Body.Reset, "reset", false, "restore the configured bounds")
			change(f, &in.Body.For, &in.Body.Reason)
		}),
		cli.Row(env, &cobra.Command{
			Use: "rebalance --reason TEXT", Short: "Move a place from the least to the most loaded pool",
		}, cli.Order(api.RebalanceHeijunka), cli.Text(printRebalance), func(in *api.RebalanceHeijunkaIn, f *cli.Flags) {
			f.BoolVar(&in.DryRun, "dry-run", false, "only show what would be done, and why")
			f.NeedReason(&in.Body.Reason, &in.DryRun)
		}),
		cli.Row(env, &cobra.Command{
			Use: "affinity DOMAIN [POOL]... --reason TEXT", Short: "Set the pools that a domain prefers; without POOL, all that it may use", Args: cobra.MinimumNArgs(1),
		}, cli.Order(api.ChangeHeijunkaAffinity), changed, func(in *api.HeijunkaAffinity, f *cli.Flags) {
			cli.Arg(f, &in.Domain)
			f.Set(func() { in.Pools = f.Args()[1:] })
			f.BoolVar(&in.Reset, "reset", false, "prefer only the domain's own pool again")
			change(f, &in.For, &in.Reason)
		}),
		cli.Row(env, &cobra.Command{
			Use: "surge start|stop|enable|disable --reason TEXT", Short: "Start or stop a surge by hand, or turn the detection of bursts on or off",
		}, cli.Order(api.SurgeHeijunka), changed, func(in *api.HeijunkaSurge, f *cli.Flags) {
			cli.Arg(f, &in.Action)
			change(f, &in.For, &in.Reason)
		}),
	)
}

// change adds the flags of a change of load levelling: its reason and how long it holds, in the
// controller's format; "" means permanently.
func change(f *cli.Flags, hold, reason *string) {
	var end time.Duration
	cli.DurationFlag(f.FlagSet, &end, "for", 0, "end by itself after so long, such as 2h")
	f.Set(func() {
		if *hold = ""; end != 0 {
			*hold = end.String()
		}
	})
	f.NeedReason(reason, nil)
}

// printHeijunka shows the state of load levelling.
func printHeijunka(w io.Writer, l api.Heijunka) {
	r := l.Regulator
	if !l.Enabled {
		fmt.Fprintln(w, "off: requests are let through unlevelled")
	}
	fmt.Fprintf(w, "load      %s: %s\n", r.Level, r.Admitted())
	fmt.Fprintf(w, "so far    %d admitted, %d refused; %.0f end per second\n", r.Accepted, r.RejectedRegular+r.RejectedHard, r.DrainRate)
	fmt.Fprintf(w, "balance   %.2f, %d places moved\n", l.Balance.Coefficient, l.Balance.Moves)
	fmt.Fprintf(w, "burst     %s\n\n", burst(l.Burst))
	heading := []string{"POOL", "HEALTH", "PLACES", "BUSY", "USED", "WAITING", "LATENCY", "ERRORS", "DONE", "REFUSED", "BOUNDS"}
	cli.List(w, heading, l.Pools, func(p store.HeijunkaPool) []string {
		return []string{
			store.Lines(p.Name), store.Lines(p.Health), fmt.Sprint(p.Workers), fmt.Sprint(p.Busy), fmt.Sprintf("%.0f%%", 100*p.Utilisation),
			fmt.Sprint(p.QueueLength), fmt.Sprintf("%.1fms", p.AverageLatencyMS), fmt.Sprintf("%.1f%%", 100*p.ErrorRate),
			fmt.Sprint(p.Processed), fmt.Sprint(p.Refused + p.Expired), fmt.Sprintf("%d..%d+%d", p.Min, p.Max, p.Overflow),
		}
	})
	if changed := heijunkaChanges(l); changed != nil {
		fmt.Fprintf(w, "\nchanged   %s\n", strings.Join(changed, "\n          "))
	}
}

// printHeijunkaChange shows the current changes, how to undo them, and the size of pools.
func printHeijunkaChange(w io.Writer, l api.Heijunka) {
	changed := heijunkaChanges(l)
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

// heijunkaChanges lists what differs from the configuration, until when, and how to undo it.
func heijunkaChanges(l api.Heijunka) (out []string) {
	var s store.HeijunkaSettings
	if json.Unmarshal(l.Changed, &s) != nil {
		return nil
	}
	add := func(what string, e store.Expiry, undo string) {
		until := ""
		if e.Until != nil {
			until = " until " + cli.Time(*e.Until)
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
		text = "surge until " + cli.Time(b.Until.Time()) + "; " + text
	case !b.Enabled:
		text = "not looked for; " + text
	}
	return text
}

// printRebalance shows between which pools a place was moved, or why none was.
func printRebalance(w io.Writer, r api.HeijunkaRebalance) {
	switch {
	case r.Done:
		fmt.Fprintf(w, "moved a place from %s to %s: %s\n", store.Lines(r.From), store.Lines(r.To), store.Lines(r.Reason))
	case r.From != "":
		fmt.Fprintf(w, "would move a place from %s to %s: %s\n", store.Lines(r.From), store.Lines(r.To), store.Lines(r.Reason))
	default:
		fmt.Fprintf(w, "nothing to move: %s\n", store.Lines(r.Reason))
	}
	cli.List(w, []string{"POOL", "USED", "PER PLACE", "PLACES", "BOUNDS"}, r.Pools, func(p store.HeijunkaPoolUse) []string {
		return []string{
			store.Lines(p.Name), fmt.Sprintf("%.0f%%", 100*p.Utilisation), fmt.Sprintf("%.2f", p.Demand), fmt.Sprint(p.Workers), fmt.Sprintf("%d..%d", p.Min, p.Max),
		}
	})
}
