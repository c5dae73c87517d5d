package command

import (
	"context"

	"github.com/spf13/cobra"

	"takt/cmd/internal/builds"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/operating"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// mostNames is how many names a shell is given.
const mostNames = 100

// completeNames has the shell complete the first argument of commands with what the controller
// has: names, each with a description after a tab.
func completeNames(root *cobra.Command, env cli.Environment) {
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
			cmd.ValidArgsFunction = cli.Completion(env, of.list)
		}
	}
	list, _, _ := root.Find([]string{"list"})
	_ = list.RegisterFlagCompletionFunc("worker", cli.Completion(env, workerNames)) // fails only for an unknown flag
}

// described returns a name with its description.
func described(name, text string) string { return store.Line(name) + "\t" + store.Line(text) }

func buildNames(ctx context.Context, c *client.Client) (out []string, err error) {
	list, err := c.List(ctx, client.Filter{Limit: mostNames})
	for _, b := range list {
		out = append(out, described(b.ID, b.State+" "+builds.LabelText(b.Labels)))
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
		out = append(out, described(q.ID, operating.Rate(q.MaxThroughput, q.TimePeriod, q.TimeUnit)))
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
