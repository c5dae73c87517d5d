package main

import (
	"context"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
)

func newLogsCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var follow bool
	var after int64
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Show a build's log",
		Long: `Show a build's log. With --json each line is one JSON object; its seq may be
given to --after to read on.`,
		Args: cli.Arguments(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show new lines until the build ends; exit code 6 if it failed")
	cmd.Flags().Int64Var(&after, "after", 0, "begin after the line with this number")
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		auth, err := s.auth(args[0])
		if err != nil {
			return err
		}
		w := waiter{session: s, id: args[0], auth: auth, follow: true}
		w.after.Seq = after
		if !follow {
			return w.showLogs(ctx)
		}
		status, err := w.wait(ctx)
		if err != nil {
			return err
		}
		return verdict(status)
	})
}
