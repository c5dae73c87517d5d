package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"takt/store"
)

// Execute runs a program's root command and returns its exit code. An error is
// printed once, on stderr.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	wrong := root.FlagErrorFunc()
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return AsUsage(wrong(cmd, err)) })
	checkArguments(root)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	name := root.Name() + ":"
	if Colour(stderr) {
		name = "\x1b[31m" + name + "\x1b[0m"
	}
	fmt.Fprintln(stderr, name, store.Lines(Message(err)))
	code := ExitCode(err)
	if code == ExitUsage {
		fmt.Fprintf(stderr, "Try '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// checkArguments makes wrong arguments a usage error for cmd and all commands below it.
// The error shows how the command is used.
func checkArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil {
				return nil
			}
			return Usage("%w; usage: %s", err, cmd.UseLine())
		}
	}
	for _, child := range cmd.Commands() {
		checkArguments(child)
	}
}

// OnlyGroups is the body of a command that only groups others.
func OnlyGroups(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return AsUsage(errors.New(text))
}

// AsUsage marks err as a usage error. It returns nil for nil.
func AsUsage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{Err: err}
}

// Interruptible makes run the body of a command. Its context ends on SIGINT or SIGTERM,
// so that run can stop and clean up what it started.
func Interruptible(run func(ctx context.Context, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		return run(ctx, cmd, args)
	}
}
