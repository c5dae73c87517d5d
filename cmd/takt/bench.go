package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/bench"
	"takt/cmd/internal/demo"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure takt on this machine",
		Long: `Measure takt on this machine, as ratios against peers in the same run.

Everything runs on loopback addresses, is bounded in time, and is removed
afterwards.`,
	}
	cfg := bench.Config{}
	e2e := &cobra.Command{
		Use:   "e2e",
		Short: "Start takt, PostgreSQL and the load generator, and print a table of ratios",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Out, cfg.Progress, cfg.Environ = cmd.OutOrStdout(), cmd.ErrOrStderr(), os.Environ()
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return bench.Run(ctx, cfg)
		},
	}
	e2e.Flags().StringSliceVar(&cfg.Only, "only", nil, "take only these figures, such as A2,E1 (A2-A4, A6-A11, B1-B3, C1, D1, E1, E2, F1)")
	e2e.Flags().DurationVar(&cfg.Duration, "duration", 10*time.Second, "how long each load lasts")
	e2e.Flags().IntVar(&cfg.Rounds, "rounds", 3, "how often each ratio is taken; the median counts")
	e2e.Flags().StringVar(&cfg.Against, "against", "", "an older takt's binary, for the figures that are compared with it (A9, A11)")
	e2e.Flags().StringVar(&cfg.Scripts, "scripts", "store/postgres/testdata/bench", "directory of the naive pgbench scripts")
	cmd.AddCommand(e2e)
	return cmd
}

// interruptible ends ctx on SIGINT or SIGTERM, so that what was started is ended
// and removed.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
}

func newDemoCommand() *cobra.Command {
	cfg := demo.Config{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the main job end to end, with real processes and a real kill",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Out, cfg.Environ = cmd.OutOrStdout(), os.Environ()
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			if err := demo.Run(ctx, cfg); err != nil {
				return fmt.Errorf("the demo failed: %w", err)
			}
			return nil
		},
	}
	cmd.AddCommand(newDemoDeployCommand(), newDemoThrottleCommand())
	cmd.Flags().StringVar(&cfg.Sample, "sample", "testdata/sample", "directory of the program that is built")
	return cmd
}

func newDemoDeployCommand() *cobra.Command {
	cfg := demo.Config{}
	return &cobra.Command{
		Use:   "deploy",
		Short: "Copy an organisation of fifty real repositories from and to a stand-in for GitHub",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Out, cfg.Err, cfg.Environ = cmd.OutOrStdout(), cmd.ErrOrStderr(), os.Environ()
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			if err := demo.Deploy(ctx, cfg); err != nil {
				return fmt.Errorf("the demo failed: %w", err)
			}
			return nil
		},
	}
}

func newDemoThrottleCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "throttle",
		Short: "Pace 200 webhooks of a stand-in for HubSpot at 10 a second",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			if err := demo.Throttle(ctx, demo.Config{Out: cmd.OutOrStdout(), Environ: os.Environ()}); err != nil {
				return fmt.Errorf("the demo failed: %w", err)
			}
			return nil
		},
	}
}
