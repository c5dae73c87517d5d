package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"takt/cmd/internal/cli"
	"takt/http/api"
)

func newHeijunkaCommand(env environment) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:     "heijunka",
		Aliases: []string{"load"},
		Short:   "Show how the load is levelled, and change it",
		Long: `Show how the load is levelled: admission, pools, balance and bursts. The
commands below change it; each needs a reason, which is audited. Changes of
limits, bounds and affinity are saved, hold on all controllers, and end by
themselves with --for. Needs the admin key in TAKT_ADMIN_KEY.`,
		Args: cli.Arguments(cobra.NoArgs),
	}
	r.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		load, err := again(ctx, s, s.client.Heijunka)
		if err != nil {
			return err
		}
		return s.showHeijunka(load)
	})
	cmd.AddCommand(
		newHeijunkaLimitsCommand(env), newHeijunkaScaleCommand(env), newHeijunkaRebalanceCommand(env),
		newHeijunkaAffinityCommand(env), newHeijunkaSurgeCommand(env),
	)
	return cmd
}

func (s *session) showHeijunka(load api.Heijunka) error {
	return s.Result(load, func(w io.Writer) { cli.PrintHeijunka(w, load) })
}

// order is what all changes have.
type order struct {
	reason string
	while  time.Duration
}

func (o *order) addFlags(fs *pflag.FlagSet, ends bool) {
	fs.StringVar(&o.reason, "reason", "", "why, for the audit (required)")
	if ends {
		fs.DurationVar(&o.while, "for", 0, "end by itself after so long, such as 2h")
	}
}

func (o *order) check() error {
	if strings.TrimSpace(o.reason) == "" {
		return cli.AsUsage(errors.New("--reason is required"))
	}
	return nil
}

// end is how long the change holds, as the controller reads it.
func (o *order) end() string {
	if o.while == 0 {
		return ""
	}
	return o.while.String()
}

// changed returns the value of a flag if it was given.
func changed(fs *pflag.FlagSet, name string, value int) *int {
	if !fs.Changed(name) {
		return nil
	}
	return &value
}

func newHeijunkaLimitsCommand(env environment) *cobra.Command {
	r, o := remote{env: env}, order{}
	var soft, hard int
	var reserved float64
	var reset bool
	cmd := &cobra.Command{
		Use:   "limits --reason TEXT",
		Short: "Change the limits of admission",
		Args:  cli.Arguments(cobra.NoArgs),
	}
	cmd.Flags().IntVar(&soft, "soft", 0, "load from which it is critical")
	cmd.Flags().IntVar(&hard, "hard", 0, "most requests that are admitted at once")
	cmd.Flags().Float64Var(&reserved, "reserved", 0, "share that is for workers' requests, 0 to 1")
	cmd.Flags().BoolVar(&reset, "reset", false, "take back what was changed")
	o.addFlags(cmd.Flags(), true)
	return r.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		fs := cmd.Flags()
		body := api.HeijunkaLimits{
			SoftLimit: changed(fs, "soft", soft), HardLimit: changed(fs, "hard", hard), Reset: reset, For: o.end(), Reason: o.reason,
		}
		if fs.Changed("reserved") {
			body.Reserved = &reserved
		}
		load, err := s.client.SetHeijunkaLimits(ctx, body)
		if err != nil {
			return err
		}
		return s.showHeijunka(load)
	})
}

func newHeijunkaScaleCommand(env environment) *cobra.Command {
	r, o := remote{env: env}, order{}
	var by, to, low, high int
	cmd := &cobra.Command{
		Use:   "scale POOL --reason TEXT",
		Short: "Change the size of a pool, or its bounds",
		Long: `Change the size of a pool on this controller with --by or --workers; scaling
goes on from there. Or change its bounds with --min and --max; the same for both
pins it.`,
		Args: cli.Arguments(cobra.ExactArgs(1)),
	}
	cmd.Flags().IntVar(&by, "by", 0, "so many workers more; less, if negative")
	cmd.Flags().IntVar(&to, "workers", 0, "so many workers")
	cmd.Flags().IntVar(&low, "min", 0, "fewest workers")
	cmd.Flags().IntVar(&high, "max", 0, "most workers")
	o.addFlags(cmd.Flags(), true)
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		if err := o.check(); err != nil {
			return err
		}
		fs := cmd.Flags()
		body := api.HeijunkaScale{
			By: changed(fs, "by", by), Workers: changed(fs, "workers", to),
			Min: changed(fs, "min", low), Max: changed(fs, "max", high), For: o.end(), Reason: o.reason,
		}
		// Once: a repeat would scale again.
		load, err := s.client.ScalePool(ctx, args[0], body)
		if err != nil {
			return err
		}
		return s.showHeijunka(load)
	})
}

func newHeijunkaRebalanceCommand(env environment) *cobra.Command {
	r, o := remote{env: env}, order{}
	var dry bool
	cmd := &cobra.Command{
		Use:   "rebalance --reason TEXT",
		Short: "Move a worker from the least to the most loaded pool",
		Args:  cli.Arguments(cobra.NoArgs),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be done, and why")
	o.addFlags(cmd.Flags(), false)
	return r.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		if !dry {
			if err := o.check(); err != nil {
				return err
			}
		}
		moved, err := s.client.Rebalance(ctx, o.reason, dry)
		if err != nil {
			return err
		}
		return s.Result(moved, func(w io.Writer) { cli.PrintRebalance(w, moved) })
	})
}

func newHeijunkaAffinityCommand(env environment) *cobra.Command {
	r, o := remote{env: env}, order{}
	cmd := &cobra.Command{
		Use:   "affinity DOMAIN [POOL]... --reason TEXT",
		Short: "Change the pools that a domain prefers; none: all of its list",
		Args:  cli.Arguments(cobra.MinimumNArgs(1)),
	}
	o.addFlags(cmd.Flags(), true)
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		if err := o.check(); err != nil {
			return err
		}
		load, err := s.client.SetAffinity(ctx, api.HeijunkaAffinity{Domain: args[0], Pools: args[1:], For: o.end(), Reason: o.reason})
		if err != nil {
			return err
		}
		return s.showHeijunka(load)
	})
}

func newHeijunkaSurgeCommand(env environment) *cobra.Command {
	r, o := remote{env: env}, order{}
	cmd := &cobra.Command{
		Use:   "surge start|stop|enable|disable --reason TEXT",
		Short: "Start or stop a surge by hand, or turn the detection of bursts on or off",
		Args:  cli.Arguments(cobra.ExactArgs(1)),
	}
	o.addFlags(cmd.Flags(), true)
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		if err := o.check(); err != nil {
			return err
		}
		load, err := s.client.Surge(ctx, api.HeijunkaSurge{Action: args[0], For: o.end(), Reason: o.reason})
		if err != nil {
			return err
		}
		return s.showHeijunka(load)
	})
}
