package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
)

func newCancelCommand(env environment) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel a build that has not ended",
		Args:  cli.Arguments(cobra.ExactArgs(1)),
	}
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		// Once: a repeat would be told that the build has ended.
		reply, err := s.client.Cancel(ctx, args[0])
		if err != nil {
			return err
		}
		return s.Result(reply, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", args[0], reply.Status) })
	})
}
