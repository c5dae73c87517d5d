package builds

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
)

// List returns takt list.
func List(env cli.Environment) *cobra.Command {
	return cli.Row(env, &cobra.Command{
		Use: "list", Short: "List builds, newest first",
		Long: `List builds, newest first. With a key that only submits: those that it submitted.`,
	},
		cli.Repeat(func(c *client.Client, ctx context.Context, f client.Filter) (_ []api.BuildItem, err error) {
			if f.WorkerID != "" {
				if f.WorkerID, err = cli.WorkerID(ctx, c, f.WorkerID); err != nil {
					return nil, err
				}
			}
			return c.List(ctx, f)
		}),
		cli.Rows(func(all []api.BuildItem) []api.BuildItem { return all },
			[]string{"BUILD", "STATE", "PLATFORM", "AGE", "TOOK", "WORKER", "LABELS"}, func(b api.BuildItem) []string {
				return []string{
					b.ID, cmp.Or(b.State, b.Status), b.Platform, cli.Since(cmp.Or(b.SubmittedAt, b.CreatedAt)), took(b),
					cmp.Or(cli.Or(b.WorkerName, ""), cli.Or(b.WorkerID, "-")), strings.TrimSpace(LabelText(b.Labels) + retryText(b.RetryOf)),
				}
			}), func(in *client.Filter, f *cli.Flags) {
			f.StringVar(&in.State, "status", "", "only builds in this state")
			f.StringVarP(&in.Q, "query", "q", "", "only builds with this text in their id, labels or error")
			f.StringVarP(&in.Platform, "platform", "p", "", "only builds for this platform")
			f.StringVar(&in.WorkerID, "worker", "", "only builds of the worker with this id or name")
			labelFlag(f, &in.Label)
			f.Limit(&in.Limit, 50)
			cli.OneOf(f.Command, "status", "pending", "assigned", "building", "completed", "failed", "cancelled")
		})
}

// retryText follows the labels of a retry in a list.
func retryText(of string) string {
	if of == "" {
		return ""
	}
	return " (retry of " + of + ")"
}

// took returns how long a build ran, has run so far, or waits now.
func took(b api.BuildItem) string {
	if waits, ok := cli.Elapsed(b.WaitingSince); ok {
		return "waits " + cli.Age(waits)
	}
	started, err := time.Parse(time.RFC3339, b.StartedAt)
	if err != nil {
		return "-"
	}
	ended, err := time.Parse(time.RFC3339, b.CompletedAt)
	if err != nil {
		ended = time.Now()
	}
	return cli.Age(ended.Sub(started))
}

// LabelText shows labels, those that name a build first.
func LabelText(labels map[string]string) string {
	names := slices.Sorted(maps.Keys(labels))
	first := []string{"app", "branch", "commit"}
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(slices.Index(first, b), slices.Index(first, a))
	})
	for i, name := range names {
		names[i] = name + "=" + labels[name]
	}
	return strings.Join(names, " ")
}
