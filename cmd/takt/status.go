package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
)

func newStatusCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var wait bool
	cmd := &cobra.Command{
		Use:   "status ID",
		Short: "Show where a build stands",
		Args:  cli.Arguments(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait for the build's end; exit code 6 if it failed")
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		auth, err := s.auth(args[0])
		if err != nil {
			return err
		}
		if wait {
			w := waiter{session: s, id: args[0], auth: auth}
			status, err := w.wait(ctx)
			if err != nil {
				return err
			}
			if err := showStatus(s, status); err != nil {
				return err
			}
			return verdict(status)
		}
		status, err := again(ctx, s, func(ctx context.Context) (api.BuildStatus, error) {
			return s.client.Status(ctx, args[0], auth)
		})
		if err != nil {
			return err
		}
		return showStatus(s, status)
	})
}

func showStatus(s *session, b api.BuildStatus) error {
	return s.Result(b, func(w io.Writer) {
		rows := [][]string{
			{"build", b.ID},
			{"state", firstSet(b.State, b.Status)},
			{"platform", b.Platform},
		}
		row := func(name, value string) {
			if value != "" {
				rows = append(rows, []string{name, cli.Plain(value)})
			}
		}
		row("worker", cli.Or(b.WorkerID, ""))
		if b.Attempt > 0 {
			row("attempt", strconv.Itoa(b.Attempt))
		}
		if b.Priority != 0 {
			row("priority", strconv.Itoa(b.Priority))
		}
		for _, name := range slices.Sorted(maps.Keys(b.Labels)) {
			row("label", name+"="+b.Labels[name])
		}
		row("submitted", when(b.SubmittedAt))
		row("started", when(b.StartedAt))
		row("ended", when(b.CompletedAt))
		if b.StartedAt != nil && b.CompletedAt != nil {
			row("took", b.CompletedAt.Time().Sub(b.StartedAt.Time()).Round(time.Millisecond).String())
		}
		cli.Table(w, rows)
		if reason := cli.Or(b.ErrorMessage, ""); reason != "" {
			fmt.Fprintf(w, "error\n%s\n", cli.Plain(reason))
		}
	})
}

func when(m *api.Millis) string {
	if m == nil {
		return ""
	}
	return m.Time().Local().Format(time.RFC3339)
}
