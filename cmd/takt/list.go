package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
)

func newListCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var f client.Filter
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List builds, newest first",
		Args:  cli.Arguments(cobra.NoArgs),
	}
	states := []string{"pending", "assigned", "building", "completed", "failed", "cancelled"}
	cmd.Flags().StringVar(&f.Status, "status", "", "only builds in this state")
	cmd.Flags().StringVarP(&f.Platform, "platform", "p", "", "only builds for ios or android")
	cmd.Flags().StringVar(&f.WorkerID, "worker", "", "only builds of this worker")
	cmd.Flags().IntVarP(&f.Limit, "limit", "n", 50, "at most so many; 0 for all")
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	return r.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		builds, err := again(ctx, s, func(ctx context.Context) ([]api.BuildItem, error) {
			return s.client.List(ctx, f)
		})
		if err != nil {
			return err
		}
		if builds == nil {
			builds = []api.BuildItem{}
		}
		return s.Result(builds, func(w io.Writer) {
			rows := [][]string{{"BUILD", "STATE", "PLATFORM", "SUBMITTED", "WORKER"}}
			for _, b := range builds {
				rows = append(rows, []string{
					b.ID, firstSet(b.State, b.Status), b.Platform, firstSet(b.SubmittedAt, b.CreatedAt),
					cli.Plain(cli.Or(b.WorkerID, "-")),
				})
			}
			cli.Table(w, rows)
		})
	})
}
