package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// completionLimit is how long a shell waits for the controller, and mostNames how many names it
// is given.
const (
	completionLimit = 2 * time.Second
	mostNames       = 100
)

// completeNames has the shell complete the first argument of commands with what the controller
// has: names, each with a description after a tab.
func completeNames(root *cobra.Command, env environment) {
	for _, of := range []struct {
		list     func(ctx context.Context, c *client.Client) ([]string, error)
		commands [][]string
	}{
		{buildNames, [][]string{{"status"}, {"logs"}, {"download"}, {"cancel"}, {"retry"}, {"priority"}, {"requeue"}}},
		{workerNames, [][]string{{"workers", "show"}, {"workers", "drain"}, {"workers", "resume"}, {"workers", "delete"}}},
		{queueNames, [][]string{{"throttle", "pause"}, {"throttle", "resume"}, {"throttle", "redrive"}}},
		{deploymentNames, [][]string{{"deployment"}, {"deployment", "cancel"}, {"deployment", "pause"}, {"deployment", "resume"}, {"deployment", "retry"}}},
	} {
		for _, path := range of.commands {
			cmd, _, err := root.Find(path)
			if err != nil {
				panic(err) // the list above is wrong
			}
			cmd.ValidArgsFunction = completion(env, of.list)
		}
	}
	list, _, _ := root.Find([]string{"list"})
	_ = list.RegisterFlagCompletionFunc("worker", completion(env, workerNames)) // fails only for an unknown flag
}

func completion(env environment, list func(ctx context.Context, c *client.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const only = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		r := remote{env: env}
		for name, to := range map[string]*string{"url": &r.url, "api-key": &r.apiKey, "api-key-file": &r.apiKeyFile, "ca-file": &r.caFile} {
			*to, _ = cmd.Flags().GetString(name)
		}
		s, err := r.open(cmd)
		if err != nil || len(args) > 0 {
			return nil, only
		}
		defer s.client.CloseIdle()
		ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
		defer cancel()
		found, _ := list(ctx, s.client) // a shell has no place for an error
		return found, only
	}
}

// described returns a name with its description.
func described(name, text string) string { return store.Line(name) + "\t" + store.Line(text) }

func buildNames(ctx context.Context, c *client.Client) (out []string, err error) {
	list, err := c.List(ctx, client.Filter{Limit: mostNames})
	for _, b := range list {
		out = append(out, described(b.ID, b.State+" "+labelText(b.Labels)))
	}
	return out, err
}

func workerNames(ctx context.Context, c *client.Client) (out []string, err error) {
	list, err := c.Workers(ctx, client.WorkerFilter{Limit: mostNames})
	for _, w := range list.Workers {
		out = append(out, described(w.Name, w.State))
	}
	return out, err
}

func queueNames(ctx context.Context, c *client.Client) (out []string, err error) {
	list, err := c.ThrottleQueues(ctx, 0, mostNames)
	for _, q := range list.Queues {
		out = append(out, described(q.ID, rate(q.MaxThroughput, q.TimePeriod, q.TimeUnit)))
	}
	return out, err
}

func deploymentNames(ctx context.Context, c *client.Client) (out []string, err error) {
	list, err := client.Call(ctx, c, api.ListDeployments, api.ListDeploymentsIn{Limit: mostNames})
	for _, d := range list.Deployments {
		out = append(out, described(d.ID, d.State))
	}
	return out, err
}
