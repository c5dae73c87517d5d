package operating

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// Throttle returns takt throttle.
func Throttle(env cli.Environment) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "throttle", Short: "Show and change the rate of HubSpot's workflow actions",
	},
		cli.Row(env, &cobra.Command{
			Use: "queues", Short: "Show queues, those with the oldest waiting action first",
			Long: "Show queues, those with the oldest waiting action first. Needs the admin key in TAKT_ADMIN_KEY.",
		}, cli.Repeat(listQueues), cli.Part(func(l api.ThrottleQueues) []api.ThrottleQueue { return l.Queues }, printQueues),
			func(in *api.ShowQueuesIn, f *cli.Flags) {
				f.Int64Var(&in.Portal, "portal", 0, "only queues of this portal")
				f.Limit(&in.Limit, 100)
				f.Check(func() error {
					if in.Limit < 0 {
						return cli.Usage("--limit must not be negative")
					}
					if in.Portal < 0 || in.Portal == 0 && f.Changed("portal") {
						return cli.Usage("--portal must be a positive whole number")
					}
					return nil
				})
			}),
		newRateCommand(env),
		cli.Row(env, queueCommand("pause", "Stop a queue from completing actions"), cli.Ask(api.PauseQueue), cli.Text(printQueue), queueOrder),
		cli.Row(env, queueCommand("resume", "Let a paused queue go on"), cli.Ask(api.ResumeQueue), cli.Text(printQueue), queueOrder),
		cli.Row(env, queueCommand("redrive", "Retry everything that failed in a queue now, resetting the attempt count"), cli.Order(api.RedriveQueue),
			cli.Text(func(w io.Writer, done api.Redriven) { fmt.Fprintf(w, "actions tried again: %d\n", done.Actions) }), queueOrder),
	)
}

func queueCommand(name, short string) *cobra.Command {
	return &cobra.Command{Use: name + " QUEUE", Short: short, Long: short + ". Needs the admin key in TAKT_ADMIN_KEY."}
}

func queueOrder(in *api.QueueOrderIn, f *cli.Flags) {
	cli.Arg(f, &in.ID)
	f.Reason(&in.Body.Reason)
}

func listQueues(c *client.Client, ctx context.Context, in api.ShowQueuesIn) (api.ThrottleQueues, error) { //nolint:revive // as a method of c
	return c.ThrottleQueues(ctx, in.Portal, in.Limit)
}

func printQueue(w io.Writer, q api.ThrottleQueue) { printQueues(w, []api.ThrottleQueue{q}) }

func printQueues(w io.Writer, queues []api.ThrottleQueue) {
	heading := []string{"QUEUE", "WAITING", "HELD", "IN FLIGHT", "COMPLETED", "OLDEST", "RATE", "NEXT DUE", "STATE", "LAST ERROR"}
	cli.List(w, heading, queues, func(q api.ThrottleQueue) []string {
		state := "-"
		if q.Paused {
			state = "paused"
		}
		return []string{
			store.Lines(q.ID), strconv.Itoa(q.Depth), strconv.Itoa(q.Held), strconv.Itoa(q.InFlight), strconv.FormatInt(q.Completed, 10), cli.Since(cli.Or(q.Oldest, "")),
			fmt.Sprintf("%d of %s", q.RateUsed, Rate(q.MaxThroughput, q.TimePeriod, q.TimeUnit)),
			cli.Or(q.NextDue, "-"), state, store.Lines(cli.Or(q.LastError, "-")),
		}
	})
}

// Rate shows a rate, such as 10 per second.
func Rate(most, period int, unit string) string {
	if period == 1 {
		return fmt.Sprintf("%d per %s", most, unit)
	}
	return fmt.Sprintf("%d per %d %ss", most, period, unit)
}

func newRateCommand(env cli.Environment) *cobra.Command {
	var set api.SetRateIn
	var remove, yes bool
	cmd := &cobra.Command{
		Use: "config PORTAL [ACTION]", SuggestFor: []string{"set", "rate"},
		Short: "Show, set or delete how many completions an action may have in a period",
		Long: `Show the rates of a portal, or the rate of one action definition. --max, --time and
--unit set the rate, which applies to waiting actions at once. With --delete new
actions are refused; waiting ones keep their rate.`,
		Example: "  takt throttle config 62515 10860211 --max 10 --time 1 --unit second",
		Args:    cobra.RangeArgs(1, 2),
	}
	cmd.Flags().IntVar(&set.MaxThroughput, "max", 0, "maximum number of completions in any period")
	cmd.Flags().IntVar(&set.TimePeriod, "time", 1, "length of the period, in units")
	cmd.Flags().StringVar(&set.TimeUnit, "unit", "second", "unit of the period: second, minute, hour or day")
	cmd.Flags().BoolVar(&remove, "delete", false, "delete the rate")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask before --delete")
	cmd.Flags().StringVar(&set.Reason, "reason", "", "why, for the audit")
	return cli.Command(env, cmd, func(ctx context.Context, s *cli.Session, args []string) error {
		ids, err := numbers(args)
		if err != nil {
			return cli.AsUsage(err)
		}
		change, err := changes(cmd.Flags().Changed, set.ThrottleConfig, remove, len(args))
		if err != nil {
			return cli.AsUsage(err)
		}
		if len(args) == 1 {
			list, err := cli.Again(ctx, s, func(ctx context.Context) (api.ThrottleConfigs, error) { return s.Client.Throttles(ctx, ids[0]) })
			return cli.Show(s, list.Configs, err, func(w io.Writer, list []api.ThrottleConfig) { printRates(w, list...) })
		}
		path := api.RatePath{PortalID: api.HubSpotID(ids[0]), ActionID: api.HubSpotID(ids[1])}
		if remove {
			if !yes {
				if err := s.Confirm(cmd.InOrStdin(), "Refuse new actions of "+args[1]+" in portal "+args[0]+"?"); err != nil {
					return err
				}
			}
			_, err := client.Call(ctx, s.Client, api.DeleteRate, api.DeleteRateIn{RatePath: path, Why: api.Why{Reason: set.Reason}})
			return cli.Show(s, map[string]bool{"deleted": true}, err, func(w io.Writer, _ map[string]bool) { fmt.Fprintln(w, "deleted") })
		}
		set.PortalID, set.ActionID = ids[0], ids[1]
		rate, err := cli.Again(ctx, s, func(ctx context.Context) (api.ThrottleConfig, error) {
			if change {
				return client.Call(ctx, s.Client, api.SetRate, set)
			}
			return client.Call(ctx, s.Client, api.ShowRate, path)
		})
		return cli.Show(s, rate, err, func(w io.Writer, c api.ThrottleConfig) { printRates(w, c) })
	})
}

// changes reports whether the flags of config ask for a change. It returns an error if
// they contradict each other or are incomplete.
func changes(given func(flag string) bool, set api.ThrottleConfig, remove bool, args int) (bool, error) {
	rate := given("max") || given("time") || given("unit")
	switch {
	case rate && remove:
		return false, errors.New("a rate is either set or deleted")
	case rate && !given("max"):
		return false, errors.New("--max is required to set a rate")
	case (rate || remove) && args < 2:
		return false, errors.New("ACTION is required")
	case rate && (set.MaxThroughput < 1 || set.TimePeriod < 1):
		return false, errors.New("--max and --time must be positive whole numbers")
	}
	if _, ok := store.ParseTimeUnit(set.TimeUnit); rate && !ok {
		return false, errors.New("--unit must be second, minute, hour or day")
	}
	return rate || remove, nil
}

func numbers(args []string) (out []int64, err error) {
	for _, a := range args {
		n, err := strconv.ParseInt(a, 10, 64)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("must be a positive whole number, got %q", a)
		}
		out = append(out, n)
	}
	return out, nil
}

func printRates(w io.Writer, list ...api.ThrottleConfig) {
	cli.List(w, []string{"PORTAL", "ACTION", "RATE", "CHANGED"}, list, func(c api.ThrottleConfig) []string {
		return []string{
			strconv.FormatInt(c.PortalID, 10), strconv.FormatInt(c.ActionID, 10), Rate(c.MaxThroughput, c.TimePeriod, c.TimeUnit), c.UpdatedAt,
		}
	})
}
