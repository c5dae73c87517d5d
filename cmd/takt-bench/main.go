// Command takt-bench measures a whole takt: the controller as a process of its own,
// PostgreSQL with durable settings, and the load generator, all on this machine.
// Machines differ and are noisy, so each figure is a ratio taken in the same run
// against a peer (pgbench running the naive statements, cp with fsync) or a limit.
// It starts bin/takt, which stands beside it, and links what takt itself must not:
// the peers, and the stand-ins for GitHub and HubSpot.
//
// # State
//
// Everything lives in one temporary directory, removed at the end.
//
// # Failure
//
// A check that finds a build lost or handed out twice ends the run with an error. A figure
// that misses its target, or can't be taken, is printed as such and is no error: neither
// noise nor a slow machine must fail a build.
//
// # Concurrency
//
// One thing is measured at a time. The bench owns the processes that it starts and
// ends them all.
package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/process"
)

func main() {
	os.Exit(cli.Execute(context.Background(), newRoot(), os.Args[1:], os.Stdout, os.Stderr))
}

// newRoot returns the takt-bench command.
func newRoot() *cobra.Command {
	var cfg config
	root := &cobra.Command{
		Use:   "takt-bench",
		Short: "Start takt, PostgreSQL and the load generator, and print a table of ratios",
		Long: `Measure takt on this machine, as ratios against peers in the same run.

Everything runs on loopback addresses, is bounded in time, and is removed
afterwards.`,
		Args: cobra.NoArgs,
		RunE: cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			if cfg.rounds < 1 || cfg.duration <= 0 {
				return cli.Usage("--rounds and --duration have to be positive")
			}
			cfg.out, cfg.progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return measure(ctx, cfg)
		}),
	}
	root.AddCommand(newScale(), newPeers())
	flags := root.Flags()
	process.Flag(flags, &cfg.takt, os.Getenv("TAKT_BINARY"))
	flags.StringSliceVar(&cfg.only, "only", nil, "take only these figures, such as A2,E1 (A2-A4, A6-A13, A12b, B1-B3, C1, C2, D1, E1, E2, E4, E5, F1, G1)")
	flags.DurationVar(&cfg.duration, "duration", 10*time.Second, "how long each load lasts")
	flags.IntVar(&cfg.rounds, "rounds", 3, "how often each ratio is taken; the median counts")
	flags.StringVar(&cfg.against, "against", "", "an older takt's binary, for the figures that are compared with it (A9, A11-A13, A12b, C2)")
	flags.StringVar(&cfg.scripts, "scripts", "store/postgres/testdata/bench", "directory of the naive pgbench scripts")
	return root
}
