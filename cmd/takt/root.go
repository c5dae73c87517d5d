package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
)

// newRoot returns the takt command with everything below it.
func newRoot() *cobra.Command { return newRootIn(os.LookupEnv) }

// environment looks up a variable as os.LookupEnv does.
type environment func(name string) (value string, set bool)

// newRootIn gives the client commands another environment.
func newRootIn(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "takt",
		Short: "Hand builds to a fleet of workers",
		Long: `takt hands builds to a fleet of workers and loses none.

Exit codes: 0 done, 1 failure, 2 usage, 3 not found, 4 refused, 5 controller
not available, 6 the build failed.`,
		SuggestionsMinimumDistance: 2,
		Args:                       cobra.ArbitraryArgs, // so that RunE can say what is unknown
		RunE:                       cli.OnlyGroups,
	}
	root.SetFlagErrorFunc(unknownFlag)
	root.AddCommand(
		newServeCommand(),
		newWorkerCommand(env),
		newSubmitCommand(env),
		newStatusCommand(env),
		newLogsCommand(env),
		newDownloadCommand(env),
		newListCommand(env),
		newCancelCommand(env),
		newPriorityCommand(env),
		newRetryCommand(env),
		newWorkersCommand(env),
		newDeployCommand(env),
		newDeploymentsCommand(env),
		newDeploymentCommand(env),
		newTreeCommand(env),
		newRestartCommand(env),
		newAuditCommand(env),
		newStorageCommand(),
		newHeijunkaCommand(env),
		newThrottleCommand(env),
		newVersionCommand(),
	)
	return root
}

// run executes takt and returns its exit code.
func run(ctx context.Context, args []string) int {
	return cli.Execute(ctx, newRoot(), args, os.Stdout, os.Stderr) //nolint:contextcheck // commands take it from cobra
}
