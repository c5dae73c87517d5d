// Command takt-demo runs takt's main jobs before the user's eyes, with nothing
// pretended: a controller on its own PostgreSQL, a fleet of worker processes that
// compile and test a real program, two submitters of whom one floods the queue, notices whose
// signatures are verified, artifacts that are downloaded and run, and a worker that is killed
// in the middle of a build. It starts bin/takt, which stands
// beside it, and links what takt itself must not: the stand-ins for GitHub and
// HubSpot.
//
// # State
//
// Everything lives in one temporary directory, removed when the demo passes.
//
// # Failure
//
// The first thing that is not as promised ends the demo with an error that says
// what was expected; the logs of all processes are kept then.
//
// # Concurrency
//
// A demo owns the processes that it starts and ends them all, also when it fails
// or is interrupted.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/process"
)

func main() {
	os.Exit(cli.Execute(context.Background(), newRoot(), os.Args[1:], os.Stdout, os.Stderr))
}

// newRoot returns the takt-demo command with everything below it.
func newRoot() *cobra.Command {
	var cfg config
	command := func(use, short string, run func(context.Context, config) error) *cobra.Command {
		return &cobra.Command{
			Use:   use,
			Short: short,
			Args:  cobra.NoArgs,
			RunE: cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
				cfg.out, cfg.err = cmd.OutOrStdout(), cmd.ErrOrStderr()
				if err := run(ctx, cfg); err != nil {
					return fmt.Errorf("the demo failed: %w", err)
				}
				return nil
			}),
		}
	}
	root := command("takt-demo", "Run takt's main job end to end, with real processes and a real kill", build)
	root.AddCommand(
		command("deploy", "Copy an organisation of fifty real repositories from and to a stand-in for GitHub", deploy),
		command("throttle", "Pace 200 webhooks of a stand-in for HubSpot at 10 a second", throttle),
	)
	process.Flag(root.PersistentFlags(), &cfg.takt, os.Getenv("TAKT_BINARY"))
	root.Flags().StringVar(&cfg.sample, "sample", "testdata/sample", "directory of the program that is built")
	root.Flags().BoolVar(&cfg.stay, "stay", false, "keep all running until Ctrl-C, to look at the dashboard")
	return root
}
