package fleet

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// Workers returns takt workers.
func Workers(env cli.Environment) *cobra.Command {
	list := newWorkersListCommand(env)
	cmd := &cobra.Command{
		Use: "workers", Short: "Show the fleet and take workers out of it", Args: cobra.NoArgs,
		Long: `Show the fleet and take workers out of it. Without a subcommand: list.

A drained worker gets no new builds and finishes those that it has. It stays drained,
even after a restart or new registration, until it is resumed. A deleted worker is gone at
once: its builds are pending again and its tokens are revoked. If it still runs, it can
register again.

A worker is quarantined when too many of its last attempts ended by its own fault, or
failed there and completed on another worker (takt serve --quarantine). It gets no
builds for a while, from a minute up to half an hour, then one as a trial. The
quarantine ends when the worker has run that build, however it ended, or with resume.

A worker is suspect when its last five builds or more failed, of two sources at least,
while others completed builds of the same app and branch (of any, if builds have no
labels). It gets one build after each rest, from a minute up to half an hour, while
enough others can take what waits; else it gets builds as before. Two that complete in a
row end it, or resume. 'takt retry --suspect WORKER' runs elsewhere what failed there.`,
		PreRunE: list.PreRunE, RunE: list.RunE,
	}
	cmd.Flags().AddFlagSet(list.Flags())
	cmd.AddCommand(
		list,
		cli.Row(env, &cobra.Command{Use: "show ID|NAME", Short: "Show a worker"},
			named(api.ShowWorker, func(in *api.WorkerPath) *api.WorkerID { return &in.ID }), cli.Text(printWorker),
			func(in *api.WorkerPath, f *cli.Flags) { cli.Arg(f, &in.ID) }),
		newWorkerOrder(env, "drain", "Give a worker no new builds", api.DrainWorker),
		newWorkerOrder(env, "resume", "Give a drained, quarantined or suspect worker builds again", api.ResumeWorker),
		newWorkersDeleteCommand(env),
	)
	return cmd
}

func newWorkersListCommand(env cli.Environment) *cobra.Command {
	return cli.Row(env, &cobra.Command{Use: "list", Short: "List workers, the oldest first"}, cli.Repeat((*client.Client).Workers),
		cli.Rows(func(l api.WorkerList) []api.Worker { return l.Workers },
			[]string{"NAME", "STATE", "BUILDS", "CPU", "DONE", "FAILED", "SEEN", "WORKER", "DIAGNOSTICS"}, func(k api.Worker) []string {
				return []string{
					store.Lines(k.Name), workerState(k), cmp.Or(strings.Join(k.Builds, ","), "-"), workerLoad(k),
					strconv.Itoa(k.Completed), strconv.Itoa(k.Failed), cli.Since(k.LastSeenAt), k.ID, workerHealth(k),
				}
			}), func(in *client.WorkerFilter, f *cli.Flags) {
			f.StringVar(&in.State, "status", "", "only workers in this state, such as silent")
			f.Limit(&in.Limit, 0)
			cli.OneOf(f.Command, "status", store.WorkerStates()...)
		})
}

// newWorkerOrder returns a command that gives an order to one worker, which is safe to repeat.
func newWorkerOrder(env cli.Environment, name, short string, e api.Endpoint[api.WorkerOrder, api.Worker]) *cobra.Command {
	return cli.Row(env, &cobra.Command{Use: name + " ID|NAME", Short: short},
		named(e, func(in *api.WorkerOrder) *api.WorkerID { return &in.ID }), cli.Text(printWorkerStatus), func(in *api.WorkerOrder, f *cli.Flags) {
			cli.Arg(f, &in.ID)
			f.Reason(&in.Body.Reason)
		})
}

// named calls an endpoint for the worker with an id or a name. The call must be safe to repeat.
func named[In, Out any](e api.Endpoint[In, Out], worker func(*In) *api.WorkerID) cli.Call[In, Out] {
	return cli.Repeat(func(c *client.Client, ctx context.Context, in In) (out Out, err error) {
		id, err := cli.WorkerID(ctx, c, string(*worker(&in)))
		if err != nil {
			return out, err
		}
		*worker(&in) = api.WorkerID(id)
		return client.Call(ctx, c, e, in)
	})
}

// isCritical reports whether a worker's last report says that it should get no builds, and nothing
// else is said about it.
func isCritical(w api.Worker) bool {
	state := cmp.Or(w.State, w.Status)
	return w.Diagnostics != nil && w.Diagnostics.Status == string(store.Critical) && (state == string(store.Idle) || state == string(store.Busy))
}

// workerState is the state of a worker in one word, or two.
func workerState(w api.Worker) string {
	state := cmp.Or(w.State, workerStatus(w))
	if isCritical(w) {
		state = w.Status + ", " + store.WorkerCritical
	}
	return state
}

// attention orders workers as the page Fleet does: those that need attention first. A state of a newer
// controller comes before all that are known.
func attention(w api.Worker) int {
	state := cmp.Or(w.State, w.Status)
	if isCritical(w) {
		state = store.WorkerCritical
	}
	return slices.Index(store.WorkerStates(), state)
}

func workerStatus(w api.Worker) string {
	status := w.Status
	if w.Draining {
		status += ", draining"
	}
	if w.State == store.WorkerSilent || w.State == store.WorkerLeaving {
		status += ", " + w.State
	}
	if isCritical(w) {
		status += ", " + store.WorkerCritical
	}
	if w.Quarantine != nil {
		status += ", quarantined until " + cli.TimeText(w.Quarantine.Until)
	}
	if w.Suspect != nil {
		status += ", suspect"
		if w.Suspect.Served {
			status += " (gets builds as before: too few others can take them)"
		}
	}
	return status
}

// workerLoad is the processor's load; "-" if the worker has not told it lately, for a build that it has.
func workerLoad(w api.Worker) string {
	if !telemetryIsPresent(w) {
		return "-"
	}
	return figure(w.Telemetry.CPUPercent, "%")
}

// telemetryIsPresent reports whether the figures of a worker are those of now: two minutes old at most.
func telemetryIsPresent(w api.Worker) bool {
	if w.Telemetry == nil || len(w.Builds) == 0 {
		return false
	}
	age, ok := cli.Elapsed(w.Telemetry.At)
	return ok && age < 2*time.Minute
}

// figure formats a figure of telemetry; "-" if it was not sent.
func figure(f *float64, unit string) string {
	if f == nil {
		return "-"
	}
	return strconv.FormatFloat(*f, 'f', 0, 64) + unit
}

// workerHealth returns why a worker is suspect or quarantined, or else the verdict of its last report.
func workerHealth(w api.Worker) string {
	switch {
	case w.Suspect != nil:
		return store.Lines(w.Suspect.Reason)
	case w.Quarantine != nil:
		return store.Lines(w.Quarantine.Reason)
	}
	return lastReport(w)
}

func lastReport(w api.Worker) string {
	d := w.Diagnostics
	switch {
	case d == nil:
		return "-"
	case d.Message != "":
		return d.Status + ": " + store.Lines(d.Message)
	default:
		return d.Status
	}
}

func printWorkerStatus(w io.Writer, k api.Worker) { fmt.Fprintf(w, "%s %s\n", k.ID, workerStatus(k)) }

func printWorker(w io.Writer, k api.Worker) {
	rows := [][]string{
		{"worker", k.ID},
		{"name", store.Lines(k.Name)},
		{"status", workerStatus(k)},
		{"platforms", cmp.Or(strings.Join(k.Platforms, ", "), "ios, android")},
		{"builds", fmt.Sprintf("%s (at most %d)", cmp.Or(strings.Join(k.Builds, ", "), "none"), k.MaxConcurrentBuilds)},
		{"completed", strconv.Itoa(k.Completed)},
		{"failed", strconv.Itoa(k.Failed)},
		{"registered", cli.TimeText(k.RegisteredAt)},
		{"seen", cli.TimeText(k.LastSeenAt)},
	}
	for _, name := range slices.Sorted(maps.Keys(k.Labels)) {
		rows = append(rows, []string{"label", store.Lines(name + "=" + k.Labels[name])})
	}
	if q := k.Quarantine; q != nil {
		rows = append(rows, []string{"quarantine", store.Lines(q.Reason)})
	}
	if s := k.Suspect; s != nil {
		rows = append(rows, []string{"suspect", store.Lines(s.Reason)}, []string{"suspect since", cli.TimeText(s.Since)})
	}
	if t := k.Telemetry; t != nil {
		rows = append(rows, []string{"telemetry", fmt.Sprintf("%s: CPU %s, memory %s, disk %s, %s", cli.TimeText(t.At), figure(t.CPUPercent, "%"),
			figure(t.MemoryMB, " MB"), figure(t.DiskPercent, "%"), store.Lines(cmp.Or(t.Stage, t.Type)))})
	}
	if d := k.Diagnostics; d != nil {
		rows = append(rows, []string{"diagnostics", cli.Time(d.RunAt.Time()) + ": " + lastReport(k)})
	}
	cli.Table(w, rows)
}

func newWorkersDeleteCommand(env cli.Environment) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{Use: "delete ID|NAME", Short: "Remove a worker; its builds are pending again", Args: cobra.ExactArgs(1)}
	reason := cli.ReasonFlag(cmd)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cli.Command(env, cmd, func(ctx context.Context, s *cli.Session, args []string) error {
		id, err := cli.WorkerID(ctx, s.Client, args[0])
		if err == nil && !yes {
			err = s.Confirm(cmd.InOrStdin(), "Remove worker "+args[0]+"? Its builds go back to the queue.")
		}
		if err != nil {
			return err
		}
		// The call is made once because a repeat would fail: the worker is gone by then.
		reply, err := client.Call(ctx, s.Client, api.DeleteWorker, api.DeleteWorkerIn{WorkerPath: api.WorkerPath{ID: api.WorkerID(id)}, Why: api.Why{Reason: *reason}})
		return cli.Show(s, reply, err, func(w io.Writer, gone api.Unregistered) {
			fmt.Fprintf(w, "%s deleted, builds pending again: %d\n", id, gone.BuildsReassigned)
		})
	})
}
