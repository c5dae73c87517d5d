package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
)

func newAuditCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var limit int
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show what operators did, newest first",
		Long:  "Show what operators did, newest first. Needs the admin key in TAKT_ADMIN_KEY.",
		Args:  cli.Arguments(cobra.NoArgs),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "at most so many, up to 1000")
	return r.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		audit, err := again(ctx, s, func(ctx context.Context) (api.Audit, error) { return s.client.Audit(ctx, limit) })
		if err != nil {
			return err
		}
		return s.Result(audit, func(w io.Writer) {
			rows := [][]string{{"AT", "WHO", "ACTION", "TARGET", "OUTCOME", "REASON"}}
			for _, e := range audit.Entries {
				rows = append(rows, []string{
					e.At, cli.Plain(e.Actor), cli.Plain(e.Action), cli.Plain(e.Target),
					cli.Plain(cli.Or(e.Outcome, "-")), cli.Plain(e.Reason),
				})
			}
			cli.Table(w, rows)
		})
	})
}
