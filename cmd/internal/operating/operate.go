package operating

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// Audit returns takt audit.
func Audit(env cli.Environment) *cobra.Command {
	return cli.Group(cli.Row(env, &cobra.Command{
		Use: "audit", Short: "Show what operators did, newest first",
		Long: "Show what operators did, newest first. Needs the admin key in TAKT_ADMIN_KEY.",
	}, cli.Repeat((*client.Client).Audit), cli.Rows(func(a api.Audit) []api.AuditEntry { return a.Entries },
		[]string{"AT", "WHO", "ACTION", "TARGET", "OUTCOME", "REASON"}, func(e api.AuditEntry) []string {
			return []string{
				cli.TimeText(e.At), store.Lines(e.Actor), store.Lines(e.Action), store.Lines(store.TargetName(e.Target, e.Detail)), store.Lines(cli.Or(e.Outcome, "-")), store.Lines(e.Reason),
			}
		}), func(limit *int, f *cli.Flags) { f.Limit(limit, 50) }), newAuditCheckCommand(env))
}

func newAuditCheckCommand(env cli.Environment) *cobra.Command {
	return cli.Command(env, &cobra.Command{
		Use: "check", Short: "Check the invariants of the database",
		Long: `Check the invariants of the database; the controller does so every minute. 'takt
repair' repairs what can be repaired without losing anything. Needs the admin key in
TAKT_ADMIN_KEY. Exit code 1 if an invariant is broken.`,
	}, func(ctx context.Context, s *cli.Session, _ []string) error {
		return invariants(ctx, s, api.CheckInvariants, api.None{}, "broken")
	})
}

// Repair returns takt repair.
func Repair(env cli.Environment) *cobra.Command {
	var dry bool
	var reason string
	cmd := cli.Command(env, &cobra.Command{
		Use: "repair --reason TEXT", Short: "Repair broken invariants of the database",
		Long: `Repair what 'takt audit check' finds where nothing is lost by it: counts and states
that contradict the builds, as a restored backup may have. Whatever needs a person's
decision is left alone. --dry-run shows what would be repaired. Needs the admin key in
TAKT_ADMIN_KEY. Exit code 1 if an invariant is still broken afterwards.`,
	}, func(ctx context.Context, s *cli.Session, _ []string) error {
		if dry {
			return invariants(ctx, s, api.CheckInvariants, api.None{}, "to repair")
		}
		if err := cli.NeedReason(reason); err != nil {
			return err
		}
		return invariants(ctx, s, api.RepairInvariants, api.Order{Reason: reason}, "broken")
	})
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only show what would be repaired")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit (required)")
	return cmd
}

var errBroken = errors.New("the database does not keep every promise")

// invariants calls an endpoint that checks or repairs, and shows the result. repairable is
// what it says of rows that a repair would change.
func invariants[In any](ctx context.Context, s *cli.Session, e api.Endpoint[In, api.Invariants], in In, repairable string) error {
	found, err := cli.Again(ctx, s, func(ctx context.Context) (api.Invariants, error) { return client.Call(ctx, s.Client, e, in) })
	if err := cli.Show(s, found.Invariants, err, func(w io.Writer, found []store.Invariant) {
		cli.List(w, []string{"INVARIANT", "STATE", "PROMISE"}, found, func(i store.Invariant) []string {
			state, n := "broken", i.Broken
			switch {
			case n == 0:
				return []string{i.Name, "holds", i.Promise}
			case i.Repaired > 0:
				state, n = "repaired", i.Repaired
			case i.Repairable:
				state = repairable
			}
			return []string{i.Name, fmt.Sprintf("%d %s: %s", n, state, store.Lines(strings.Join(i.Examples, ", "))), i.Promise}
		})
	}); err != nil {
		return err
	}
	if slices.ContainsFunc(found.Invariants, func(i store.Invariant) bool { return i.Broken > i.Repaired }) {
		return errBroken
	}
	return nil
}

// Restart returns takt restart.
func Restart(env cli.Environment) *cobra.Command {
	return treeOrder(env, "restart", &cobra.Command{
		Use: "restart PATH --reason TEXT", Short: "Restart a part of the controller's supervision tree", Args: cobra.ExactArgs(1),
		Long: `Restart a part of the controller's supervision tree, such as database/pool, and wait
until it is running again. Processes stop in order, and the restart does not count against
restart budgets. 'takt restart takt' restarts the whole tree without ending the operating
system's process. Needs the admin key in TAKT_ADMIN_KEY.`,
	})
}

// Start returns takt start.
func Start(env cli.Environment) *cobra.Command {
	return treeOrder(env, "start", &cobra.Command{
		Use: "start PATH --reason TEXT", Short: "Start a part of the controller's supervision tree that was terminated", Args: cobra.ExactArgs(1),
		Long: `Start a part of the controller's supervision tree that an operator has terminated, and
wait until it is running. 'takt tree' shows which are. Needs the admin key in TAKT_ADMIN_KEY.`,
	})
}

// treeOrder returns a command that gives an order to the tree.
func treeOrder(env cli.Environment, action string, about *cobra.Command) *cobra.Command {
	o := client.Order{Action: action}
	var dry bool
	cmd := cli.Command(env, about, func(ctx context.Context, s *cli.Session, args []string) error {
		o.Path = strings.Trim(args[0], "/")
		if dry {
			plan, err := s.Client.Plan(ctx, o)
			return cli.Show(s, plan, err, cli.PrintPlan)
		}
		if err := cli.NeedReason(o.Reason); err != nil {
			return err
		}
		// Operate is sent once because a repeat would do it again.
		done, err := s.Client.Operate(ctx, o)
		switch {
		case err != nil:
			return err
		case done.Plan != nil:
			return s.Say(done.Plan, "%s is about to "+action+", after this reply; see takt tree", done.Plan.Path)
		default:
			return s.Result(done.Node, func(w io.Writer) { cli.PrintTree(w, *done.Node) })
		}
	})
	cmd.Flags().StringVar(&o.Reason, "reason", "", "why, for the audit (required)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show what would "+action+", and how many requests are under way")
	cli.DurationFlag(cmd.Flags(), &o.Timeout, "timeout", 10*time.Second, "how long to wait until all is well, at most 60s")
	cmd.Flags().BoolVar(&o.Force, "force", false, "do it even where the controller asks for confirmation")
	return cmd
}

// Tree returns takt tree.
func Tree(env cli.Environment) *cobra.Command {
	var all, watch bool
	cmd := cli.Command(env, &cobra.Command{
		Use: "tree [PATH]", Short: "Show the controller's supervision tree", Args: cobra.MaximumNArgs(1),
		Long: `Show the controller's supervision tree, or the part of it at PATH, such as
database/pool. Needs the admin key in TAKT_ADMIN_KEY.`,
	}, func(ctx context.Context, s *cli.Session, args []string) error {
		o := client.TreeOptions{All: all, Path: strings.Trim(strings.Join(args, ""), "/")}
		if watch {
			return watchTree(ctx, s, o)
		}
		root, err := cli.Again(ctx, s, func(ctx context.Context) (api.TreeNode, error) { return s.Client.Tree(ctx, o) })
		return cli.Show(s, root, err, cli.PrintTree)
	})
	cmd.Flags().BoolVar(&all, "all", false, "list the children of dynamic supervisors too")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "refresh every second, until interrupted")
	return cmd
}

// clearScreen moves the cursor to the top left and clears the terminal.
const clearScreen = "\x1b[H\x1b[2J"

// watchTree shows the tree every second until ctx ends, which is no error. It waits for a
// controller that is unavailable, because users watch the tree during restarts.
func watchTree(ctx context.Context, s *cli.Session, o client.TreeOptions) error {
	for ctx.Err() == nil {
		root, err := s.Client.Tree(ctx, o)
		switch {
		case ctx.Err() != nil: // the end
		case client.Temporary(err):
			s.Note("takt: %s", store.Lines(cli.Message(err)))
		default:
			if err := cli.Show(s, root, err, redraw); err != nil {
				return err
			}
		}
		_ = backoff.Pause(ctx, time.Second)
	}
	return nil
}

// redraw clears the screen and shows the tree; if w is no terminal, it writes the tree
// below the last one.
func redraw(w io.Writer, root api.TreeNode) {
	before, after := "", "\n"
	if cli.Terminal(w) {
		before, after = clearScreen, ""
	}
	fmt.Fprintf(w, "%s%s\n", before, cli.Time(time.Now()))
	cli.PrintTree(w, root)
	fmt.Fprint(w, after)
}

// Timeouts returns takt timeouts.
func Timeouts(env cli.Environment) *cobra.Command {
	return cli.Row(env, &cobra.Command{
		Use: "timeouts", Short: "Show and set the time-outs of builds and workers",
		Long: `Show after how much silence a build's attempt is lost or a worker is offline, and how
often that is checked. --build, --worker and --check change it on all controllers,
until it is changed again. Needs the admin key in TAKT_ADMIN_KEY.`,
		Example: "  takt timeouts --worker 10m --reason 'the minis sleep'",
	}, func(ctx context.Context, s *cli.Session, in api.HeartbeatSettings) (api.HeartbeatSettings, error) {
		if in == (api.HeartbeatSettings{Reason: in.Reason}) {
			return cli.Ask(api.ShowTimeouts)(ctx, s, api.None{})
		}
		return cli.Ask(api.ChangeTimeouts)(ctx, s, in)
	}, cli.Text(printTimeouts), func(in *api.HeartbeatSettings, f *cli.Flags) {
		silence := func(to **float64, name, usage string) {
			var d time.Duration
			cli.DurationFlag(f.FlagSet, &d, name, 0, usage)
			f.Set(func() {
				if seconds := d.Seconds(); seconds != 0 {
					*to = &seconds
				}
			})
		}
		silence(&in.BuildTimeout, "build", "silence after which a build is taken from its worker")
		silence(&in.WorkerTimeout, "worker", "silence after which a worker is offline")
		silence(&in.CheckInterval, "check", "time between two checks")
		f.Reason(&in.Reason)
	})
}

func printTimeouts(w io.Writer, now api.HeartbeatSettings) {
	rows := [][]string{{"TIMEOUT", "VALUE"}}
	for _, t := range []struct {
		name    string
		seconds *float64
	}{{"build", now.BuildTimeout}, {"worker", now.WorkerTimeout}, {"check", now.CheckInterval}} {
		if t.seconds != nil {
			rows = append(rows, []string{t.name, cli.DurationText(time.Duration(*t.seconds * float64(time.Second)))})
		}
	}
	cli.Table(w, rows)
}
