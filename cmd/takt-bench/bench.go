package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
)

// config says what to measure.
type config struct {
	// takt is the program to measure; empty: the one beside this program.
	takt string
	// only lists the figures to take, such as A2; empty takes all.
	only []string
	// duration is how long each load lasts.
	duration time.Duration
	// rounds is how often each ratio is taken; the median counts.
	rounds int
	// against is an older takt, which some figures are compared with. Without it
	// these are taken alone.
	against string
	// scripts is the directory of the naive pgbench scripts.
	scripts string
	// out gets the table, progress a line per step.
	out, progress io.Writer
}

// figure is one row of the table.
type figure struct {
	name, what, measured, ratio, target string
	// cpu is the processor time of one operation.
	cpu string
	met bool
	// failed is why the figure could not be taken, if so.
	failed string
	// alone is true if there was no older takt to compare with.
	alone bool
}

// atLeast judges a figure by a ratio; also says what else was asked for.
func (f figure) atLeast(ratio, target float64, also string) figure {
	f.ratio, f.target, f.met = fmt.Sprintf("%.2f", ratio), fmt.Sprintf("≥ %g%s", target, also), ratio >= target
	return f
}

func (f figure) atMost(ratio, target float64) figure {
	f.ratio, f.target, f.met = fmt.Sprintf("%.2f", ratio), fmt.Sprintf("≤ %g", target), ratio <= target
	return f
}

// both judges a figure by two ratios, which are at most limit.
func (f figure) both(one, other, limit float64) figure {
	f.ratio, f.target = fmt.Sprintf("%.2f; %.2f", one, other), fmt.Sprintf("≤ %g; ≤ %g", limit, limit)
	f.met = max(one, other) <= limit
	return f
}

// below judges a figure by a limit, in MiB or a time.
func (f figure) below(got, limit float64, target string) figure {
	f.ratio, f.target, f.met = fmt.Sprintf("%.2f of limit", got/limit), "< "+target, got < limit
	return f
}

// duration is a figure of a time.
func duration(name, what string, got, limit time.Duration) figure {
	f := figure{name: name, what: what, measured: got.Round(time.Millisecond).String()}
	return f.below(got.Seconds(), limit.Seconds(), limit.String())
}

const mib = 1 << 20

// memory is a figure of resident memory, in bytes.
func memory(name, what string, got, limit int) figure {
	f := figure{name: name, what: what, measured: fmt.Sprintf("%d MiB", got/mib)}
	return f.below(float64(got), float64(limit), fmt.Sprintf("%d MiB", limit/mib))
}

// run is a bench in progress.
type run struct {
	config
	process.Site
	figures []figure
	// broken are the promises that were found broken.
	broken []error
	// ends end what the measurement under way has started.
	ends []func() error
}

// controller is a takt that is measured, and its embedded database.
type controller struct {
	*process.Controller
	db database
}

// start starts a controller, which is stopped when the measurement has ended.
func (r *run) start(ctx context.Context, name string, settings ...string) *controller {
	return r.startAt(ctx, r.Site, name, settings...)
}

func (r *run) startAt(ctx context.Context, site process.Site, name string, settings ...string) *controller {
	c := must.Get(site.Controller(ctx, name, settings...))
	r.atEnd(func() error {
		if !c.Alive() {
			return nil
		}
		return c.Stop(context.WithoutCancel(ctx), stopLimit)
	})
	return &controller{c, database(c.DatabaseURL())}
}

// startOlder starts a controller of the takt to compare with, nil if there is none.
func (r *run) startOlder(ctx context.Context, name string, settings ...string) *controller {
	if r.against == "" {
		return nil
	}
	site := r.Site
	site.Takt = r.against
	return r.startAt(ctx, site, name, settings...)
}

// atEnd lets the measurement call end when it is over.
func (r *run) atEnd(end func() error) { r.ends = append(r.ends, end) }

// end ends what the measurement has started, the last first.
func (r *run) end() (err error) {
	for _, end := range slices.Backward(r.ends) {
		err = errors.Join(err, end())
	}
	r.ends = nil
	return err
}

// measurement is one function that adds figures to the table.
type measurement struct {
	names []string
	take  func(*run, context.Context)
}

func measurements() []measurement {
	return []measurement{
		{[]string{"E2"}, (*run).starts},
		{[]string{"E4"}, (*run).back},
		{[]string{"E5"}, (*run).idle},
		{[]string{"E1"}, (*run).parkedMemory},
		{[]string{"A2", "A3", "A7"}, (*run).polls},
		{[]string{"A11"}, (*run).alone},
		{[]string{"A11"}, (*run).submits},
		{[]string{"A12"}, (*run).results},
		{[]string{"A12b"}, (*run).posts},
		{[]string{"A13"}, (*run).wholeBuilds},
		{[]string{"A9"}, (*run).quiet},
		{[]string{"A10"}, (*run).mixed},
		{[]string{"A4"}, (*run).wake},
		{[]string{"C1"}, (*run).levelling},
		{[]string{"C2"}, (*run).overload},
		{[]string{"D1"}, (*run).hooks},
		{[]string{"A6"}, (*run).depth},
		{[]string{"A8"}, (*run).snapshot},
		{[]string{"B1"}, (*run).upload},
		{[]string{"F1"}, (*run).deployments},
		{[]string{"F1"}, (*run).plannedMemory},
		{[]string{"B2"}, (*run).crowded},
		{[]string{"B3"}, (*run).downloads},
		{[]string{"G1"}, (*run).dashboards},
	}
}

// measure takes the figures and prints the table.
func measure(ctx context.Context, cfg config) (err error) {
	if cfg.against != "" {
		if cfg.against, err = process.Find(cfg.against); err != nil {
			return err
		}
	}
	r := &run{config: cfg}
	return r.in(ctx, func() error {
		for _, m := range measurements() {
			// One figure that can't be taken is no reason not to take the others.
			if r.wanted(m.names...) && ctx.Err() == nil {
				if err := errors.Join(must.Try(func() { m.take(r, ctx) }), r.end()); err != nil {
					r.missing(strings.Join(m.names, ", "), err)
				}
			}
		}
		return r.print()
	})
}

// in runs f in a directory of its own. It fails with f, or if a promise was broken.
func (r *run) in(ctx context.Context, f func() error) error {
	return process.In("takt-bench", r.takt, r.progress, func(site process.Site) error {
		r.Site = site
		r.Settings = settings
		err := f()
		return errors.Join(append(r.broken, err, context.Cause(ctx))...)
	})
}

// settings are those of all controllers. Workers that are given builds only poll: they send
// no sign of life, and none of their builds may be requeued for that on a slow machine.
var settings = []string{"TAKT_QUEUE_LIMIT=100000000", "TAKT_POLL_RATE=0", "TAKT_REGISTER_RATE=0", "TAKT_BUILD_TIMEOUT=100h", "TAKT_WORKER_TIMEOUT=100h", "TAKT_LOG=warn,json"} // constant

// errBroken is in every error that says that takt broke a promise: something was lost, or
// handed out twice. Only such an error fails the run.
var errBroken = errors.New("a promise was broken")

// missing notes that a figure was not taken, and why.
func (r *run) missing(name string, err error) {
	r.say("%s can't be taken: %v", name, err)
	if errors.Is(err, errBroken) {
		r.broken = append(r.broken, fmt.Errorf("measuring %s: %w", name, err))
	}
	r.add(figure{name: name, failed: reason(err)})
}

// reason is the beginning of an error, for a table.
func reason(err error) string {
	const most = 150
	line, _, _ := strings.Cut(err.Error(), "\n")
	if letters := []rune(line); len(letters) > most {
		line = string(letters[:most]) + "…"
	}
	return line
}

func (r *run) wanted(names ...string) bool {
	return len(r.only) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(r.only, n) })
}

func (r *run) say(format string, args ...any) { fmt.Fprintf(r.progress, format+"\n", args...) }

func (r *run) add(f figure) { r.figures = append(r.figures, f) }

func (r *run) print() error {
	tw := tabwriter.NewWriter(r.out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "#\tWHAT\tMEASURED\tCPU PER OPERATION\tRATIO\tTARGET\t")
	for _, f := range r.figures {
		verdict := "met"
		if f.failed != "" {
			fmt.Fprintf(tw, "%s\tnot taken: %s\t\t\t\t\t\n", f.name, f.failed)
			continue
		} else if f.alone {
			f.ratio, verdict = "-", "not compared: see --against"
		} else if f.target == "" {
			verdict = "reported"
		} else if !f.met {
			verdict = "MISSED"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.name, f.what, f.measured, cmp.Or(f.cpu, "-"), f.ratio, f.target, verdict)
	}
	return tw.Flush()
}

// stopLimit is only for a process that hangs: takt ends by its own deadlines.
const stopLimit = 5 * time.Minute

// median of ratios, of which there is at least one.
func median[T int | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
