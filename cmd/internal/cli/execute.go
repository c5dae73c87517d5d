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
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetHelpCommand(helpCommand(root))
	root.InitDefaultCompletionCmd(args...)
	checkArguments(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	code := ExitCode(err)
	if f := cmd.Flags().Lookup("json"); f != nil && f.Value.String() == "true" {
		_ = EncodeJSON(stderr, problemOf(err)) // there is nowhere to report this
		return code
	}
	name := root.Name() + ":"
	if Colour(stderr) {
		name = "\x1b[31m" + name + "\x1b[0m"
	}
	fmt.Fprintln(stderr, name, store.Lines(Message(err)))
	if code == ExitUsage {
		fmt.Fprintf(stderr, "Try '%s --help'.\n", cmd.CommandPath())
	}
	return code
}

// helpCommand returns `help COMMAND`. Unlike cobra's, it fails for an unknown command.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about a command", Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if cmd, _, err := root.Find(args); err == nil {
				for _, c := range cmd.Commands() {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return onlyGroups(cmd, rest)
			}
			return cmd.Help()
		},
	}
}

// checkArguments makes wrong arguments a usage error for cmd and all commands below it.
// The error shows how the command is used.
func checkArguments(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args, cmd.RunE = cobra.ArbitraryArgs, onlyGroups
	} else if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if _, said := errors.AsType[UsageError](err); err == nil || said {
				return err
			}
			text := err.Error()
			if len(args) == 0 {
				text = cmd.CommandPath() + " needs an argument"
			}
			if cmd.GroupID == "Builds" && strings.Contains(cmd.Use, " ID") {
				text += " (takt list shows builds)"
			}
			return Usage("%s; usage: %s", text, cmd.UseLine())
		}
	}
	for _, child := range cmd.Commands() {
		checkArguments(child)
	}
}

// onlyGroups is the body of a command that only groups others.
func onlyGroups(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2
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
// so that run can stop and clean up what it started. An error that it returns then is an
// InterruptedError.
func Interruptible(run func(ctx context.Context, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		err := run(ctx, cmd, args)
		if err != nil && ctx.Err() != nil && cmd.Context().Err() == nil && ExitCode(err) != ExitBuildFailed {
			return InterruptedError{err}
		}
		return err
	}
}
