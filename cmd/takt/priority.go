package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/store"
)

func newPriorityCommand(env environment) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:   "priority [flags] ID N",
		Short: "Change the priority of a build that waits",
		Long: `Change the priority of a build that waits: -10 to 10, higher is built first.
Among builds of the same priority the older submission is first. Flags stand
before the id, because N may be negative.`,
		DisableFlagsInUseLine: true,
		Args:                  cli.Arguments(cobra.ExactArgs(2)),
	}
	cmd.Flags().SetInterspersed(false)
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		priority, err := store.ParsePriority(args[1])
		if err != nil {
			return cli.AsUsage(err)
		}
		build, err := s.client.SetPriority(ctx, args[0], priority)
		if err != nil {
			return err
		}
		return s.Result(build, func(w io.Writer) { fmt.Fprintf(w, "%s priority %d\n", args[0], priority) })
	})
}
