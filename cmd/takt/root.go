package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

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
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		SilenceUsage:               true,
		Args:                       cobra.ArbitraryArgs, // so that RunE can say what is unknown
		RunE:                       onlyGroups,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	root.AddCommand(
		newServeCommand(),
		newDemoCommand(),
		newBenchCommand(),
		newWorkerCommand(env),
		newSubmitCommand(env),
		newStatusCommand(env),
		newLogsCommand(env),
		newDownloadCommand(env),
		newListCommand(env),
		newCancelCommand(env),
		newRetryCommand(env),
		newWorkersCommand(env),
		newDeployCommand(env),
		newDeploymentsCommand(env),
		newDeploymentCommand(env),
		newTreeCommand(env),
		newRestartCommand(env),
		newAuditCommand(env),
		newStorageCommand(),
		newLoadCommand(env),
		newThrottleCommand(env),
		newVersionCommand(),
	)
	return root
}

// onlyGroups runs a command that does nothing but group others.
func onlyGroups(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError(errors.New(text))
}

// run executes takt and returns its exit code.
func run(ctx context.Context, args []string) int {
	return execute(ctx, newRoot(), args, os.Stdout, os.Stderr) //nolint:contextcheck // commands take it from cobra
}

func execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return cli.ExitOK
	}
	fmt.Fprintln(stderr, "takt:", cli.Plain(cli.Message(err)))
	code := cli.ExitCode(err)
	if code == cli.ExitUsage {
		fmt.Fprintf(stderr, "Try '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// usageError marks err as the caller's fault: exit code 2.
func usageError(err error) error {
	if err == nil {
		return nil
	}
	return cli.UsageError{Err: err}
}

// arguments makes a wrong number of arguments a usage error.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return usageError(check(cmd, args)) }
}
