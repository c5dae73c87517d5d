package command

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/builds"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/operating"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// mostNames is how many names a shell is given, and completionLimit how long it waits for them.
const mostNames, completionLimit = 100, 2 * time.Second

// completeNames has the shell complete the first argument of commands with what the controller
// has: names, each with a description after a tab.
func completeNames(root *cobra.Command, env cli.Environment) {
	workerNames := names(env, func(ctx context.Context, c *client.Client) ([]api.Worker, error) {
		list, err := c.Workers(ctx, client.WorkerFilter{Limit: mostNames})
		return list.Workers, err
	}, func(w api.Worker) (name, text string) { return w.Name, w.State })
	for _, of := range []struct {
		complete cobra.CompletionFunc
		commands [][]string
	}{
		{names(env, func(ctx context.Context, c *client.Client) ([]api.BuildItem, error) {
			return c.List(ctx, client.Filter{Limit: mostNames})
		}, func(b api.BuildItem) (name, text string) { return b.ID, b.State + " " + builds.LabelText(b.Labels) }), [][]string{
			{"status"}, {"logs"}, {"download"}, {"cancel"}, {"retry"}, {"priority"}, {"requeue"},
		}},
		{workerNames, [][]string{{"workers", "show"}, {"workers", "drain"}, {"workers", "resume"}, {"workers", "delete"}}},
		{names(env, func(ctx context.Context, c *client.Client) ([]api.ThrottleQueue, error) {
			list, err := c.ThrottleQueues(ctx, 0, mostNames)
			return list.Queues, err
		}, func(q api.ThrottleQueue) (name, text string) {
			return q.ID, operating.Rate(q.MaxThroughput, q.TimePeriod, q.TimeUnit)
		}), [][]string{{"throttle", "pause"}, {"throttle", "resume"}, {"throttle", "redrive"}}},
		{names(env, func(ctx context.Context, c *client.Client) ([]api.Deployment, error) {
			return c.Deployments(ctx, mostNames)
		}, func(d api.Deployment) (name, text string) { return d.ID, d.State }), [][]string{
			{"deployment"}, {"deployment", "cancel"}, {"deployment", "pause"}, {"deployment", "resume"}, {"deployment", "retry"},
		}},
	} {
		for _, path := range of.commands {
			cmd, _, err := root.Find(path)
			if err != nil {
				panic(err) // the list above is wrong
			}
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return of.complete(cmd, args, begun)
			}
		}
	}
	platforms := names(env, func(ctx context.Context, c *client.Client) ([]store.Platform, error) {
		health, err := client.Call(ctx, c, api.ShowHealth, api.None{})
		if len(health.Platforms) == 0 { // it does not answer, or is an older one
			health.Platforms = []store.Platform{store.IOS, store.Android}
		}
		return health.Platforms, err
	}, func(p store.Platform) (name, text string) { return string(p), "" })
	for _, flag := range []struct {
		command, name string
		complete      cobra.CompletionFunc
	}{{"list", "worker", workerNames}, {"list", "platform", platforms}, {"submit", "platform", platforms}, {"worker", "platform", platforms}} {
		cmd, _, _ := root.Find([]string{flag.command})
		_ = cmd.RegisterFlagCompletionFunc(flag.name, flag.complete) // fails only for an unknown flag
	}
}

// names has the shell complete a word with the names of what list finds.
func names[T any](
	env cli.Environment, list func(ctx context.Context, c *client.Client) ([]T, error), describe func(T) (name, text string),
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) (out []string, _ cobra.ShellCompDirective) {
		const only = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		r := cli.Remote{Env: env}
		for name, to := range map[string]*string{"url": &r.URL, "api-key": &r.APIKey, "api-key-file": &r.APIKeyFile, "ca-file": &r.CAFile} {
			*to, _ = cmd.Flags().GetString(name)
		}
		s, err := r.Open(cmd)
		if err != nil {
			return nil, only
		}
		defer s.Client.CloseIdle()
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		found, _ := list(ctx, s.Client) // a shell has no place for an error
		for _, one := range found {
			name, text := describe(one)
			out = append(out, strings.TrimSuffix(store.Line(name)+"\t"+store.Line(text), "\t"))
		}
		return out, only
	}
}
