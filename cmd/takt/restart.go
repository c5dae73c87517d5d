package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/client"
)

func newRestartCommand(env environment) *cobra.Command {
	r := remote{env: env}
	o := client.Order{Action: "restart"}
	var dry bool
	cmd := &cobra.Command{
		Use:   "restart PATH --reason TEXT",
		Short: "Restart a part of the controller's supervision tree",
		Long: `Restart a part of the controller's supervision tree, such as database/pool, in
order and without counting against restart budgets, and wait until it is well
again. 'takt restart takt' restarts all of it in the running process. Needs the
admin key in TAKT_ADMIN_KEY.`,
		Args: cli.Arguments(cobra.ExactArgs(1)),
	}
	cmd.Flags().StringVar(&o.Reason, "reason", "", "why, for the audit (required)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show what would be restarted, and how many requests are under way")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 10*time.Second, "how long to wait until all is well, at most 60s")
	cmd.Flags().BoolVar(&o.Force, "force", false, "insist where the controller asks for it")
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		o.Path = strings.Trim(args[0], "/")
		if dry {
			plan, err := s.client.Plan(ctx, o)
			if err != nil {
				return err
			}
			return s.Result(plan, func(w io.Writer) { cli.PrintPlan(w, plan) })
		}
		if strings.TrimSpace(o.Reason) == "" {
			return cli.AsUsage(errors.New("--reason is required"))
		}
		// Once: a repeat would restart again.
		done, err := s.client.Operate(ctx, o)
		switch {
		case err != nil:
			return err
		case done.Plan != nil:
			return s.Result(done.Plan, func(w io.Writer) {
				fmt.Fprintf(w, "%s is about to restart, after this reply; see takt tree\n", done.Plan.Path)
			})
		default:
			return s.Result(done.Node, func(w io.Writer) { cli.PrintTree(w, *done.Node) })
		}
	})
}
