package operating

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"takt/cmd/internal/cli"
	"takt/http/api"
)

// Heijunka returns takt heijunka.
func Heijunka(env cli.Environment) *cobra.Command {
	cmd := cli.Ask(env, &cobra.Command{
		Use:   "heijunka",
		Short: "Show and change the load levelling",
		Long: `Show the load levelling: admission, pools, balance and bursts. The commands below
change it; each needs a reason, which is audited. Changes of limits, bounds and
affinity are saved and apply to all controllers; with --for they end by themselves.
Needs the admin key in TAKT_ADMIN_KEY.`,
	}, cli.Calls(api.ShowHeijunka, func([]string) (in api.None, err error) { return in, nil }), cli.PrintHeijunka)
	cmd.AddCommand(
		newHeijunkaLimitsCommand(env), newHeijunkaScaleCommand(env), newHeijunkaRebalanceCommand(env),
		newHeijunkaAffinityCommand(env), newHeijunkaSurgeCommand(env),
	)
	return cmd
}

// change makes cmd a command that changes load levelling. in gets the reason and how long the
// change holds, in the controller's format; "" means permanently.
func change[In any](
	env cli.Environment, cmd *cobra.Command, e api.Endpoint[In, api.Heijunka], in func(args []string, reason, hold string) In,
) *cobra.Command {
	var reason string
	var end time.Duration
	cli.Order(env, cmd, cli.Calls(e, func(args []string) (In, error) {
		hold := ""
		if end != 0 {
			hold = end.String()
		}
		return in(args, reason, hold), cli.NeedReason(reason)
	}), cli.PrintHeijunkaChange)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit (required)")
	cli.DurationFlag(cmd.Flags(), &end, "for", 0, "end by itself after so long, such as 2h")
	return cmd
}

// given returns the value of a flag, or nil if the flag was not given.
func given[T any](fs *pflag.FlagSet, name string, value T) *T {
	if !fs.Changed(name) {
		return nil
	}
	return &value
}

func newHeijunkaLimitsCommand(env cli.Environment) *cobra.Command {
	var soft, hard int
	var reserved float64
	var reset bool
	cmd := &cobra.Command{Use: "limits --reason TEXT", Short: "Change the limits of admission"}
	fs := cmd.Flags()
	fs.IntVar(&soft, "soft", 0, "load at which it becomes critical")
	fs.IntVar(&hard, "hard", 0, "maximum number of requests admitted at once")
	fs.Float64Var(&reserved, "reserved", 0, "share reserved for workers' requests, 0 to 1")
	fs.BoolVar(&reset, "reset", false, "restore the configured limits")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if fs.Changed("soft") || fs.Changed("hard") || fs.Changed("reserved") || reset {
			return nil
		}
		return cli.Usage("nothing to change: give --soft, --hard, --reserved or --reset, and --reason; %s shows the limits", cmd.Parent().CommandPath())
	}
	return change(env, cmd, api.ChangeHeijunkaLimits, func(_ []string, reason, hold string) api.HeijunkaLimits {
		return api.HeijunkaLimits{
			SoftLimit: given(fs, "soft", soft), HardLimit: given(fs, "hard", hard), Reserved: given(fs, "reserved", reserved),
			Reset: reset, For: hold, Reason: reason,
		}
	})
}

func newHeijunkaScaleCommand(env cli.Environment) *cobra.Command {
	var by, to, low, high int
	var reset bool
	cmd := &cobra.Command{
		Use:   "scale POOL --reason TEXT",
		Short: "Change the size of a pool, or its bounds",
		Long: `Change the number of a pool's places on this controller, with --by or --workers;
scaling continues from there. Or change its bounds with --min and --max; equal bounds
fix the size. --reset restores the configured bounds.`,
		Args: cobra.ExactArgs(1),
	}
	fs := cmd.Flags()
	fs.IntVar(&by, "by", 0, "add this many places; negative removes some")
	fs.IntVar(&to, "workers", 0, "set this many places")
	fs.IntVar(&low, "min", 0, "minimum number of places")
	fs.IntVar(&high, "max", 0, "maximum number of places")
	fs.BoolVar(&reset, "reset", false, "restore the configured bounds")
	return change(env, cmd, api.ScalePool, func(args []string, reason, hold string) api.ScalePoolIn {
		return api.ScalePoolIn{Name: args[0], Body: api.HeijunkaScale{
			By: given(fs, "by", by), Workers: given(fs, "workers", to), Min: given(fs, "min", low), Max: given(fs, "max", high),
			Reset: reset, For: hold, Reason: reason,
		}}
	})
}

func newHeijunkaRebalanceCommand(env cli.Environment) *cobra.Command {
	var reason string
	var dry bool
	cmd := cli.Order(env, &cobra.Command{
		Use: "rebalance --reason TEXT", Short: "Move a place from the least to the most loaded pool",
	}, cli.Calls(api.RebalanceHeijunka, func([]string) (in api.RebalanceHeijunkaIn, err error) {
		if !dry {
			err = cli.NeedReason(reason)
		}
		return api.RebalanceHeijunkaIn{DryRun: dry, Body: api.Reason{Reason: reason}}, err
	}), cli.PrintRebalance)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only show what would be done, and why")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit (required)")
	return cmd
}

func newHeijunkaAffinityCommand(env cli.Environment) *cobra.Command {
	var reset bool
	cmd := &cobra.Command{
		Use:   "affinity DOMAIN [POOL]... --reason TEXT",
		Short: "Set the pools that a domain prefers; without POOL, all that it may use",
		Args:  cobra.MinimumNArgs(1),
	}
	cmd.Flags().BoolVar(&reset, "reset", false, "prefer only the domain's own pool again")
	return change(env, cmd, api.ChangeHeijunkaAffinity, func(args []string, reason, hold string) api.HeijunkaAffinity {
		return api.HeijunkaAffinity{Domain: args[0], Pools: args[1:], Reset: reset, For: hold, Reason: reason}
	})
}

func newHeijunkaSurgeCommand(env cli.Environment) *cobra.Command {
	return change(env, &cobra.Command{
		Use:   "surge start|stop|enable|disable --reason TEXT",
		Short: "Start or stop a surge by hand, or turn the detection of bursts on or off",
		Args:  cobra.ExactArgs(1),
	}, api.SurgeHeijunka, func(args []string, reason, hold string) api.HeijunkaSurge {
		return api.HeijunkaSurge{Action: args[0], For: hold, Reason: reason}
	})
}
