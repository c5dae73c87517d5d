package operating

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// Notices returns takt notices.
func Notices(env cli.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notices",
		Short: "Send notices of builds, workers and deployments to URLs",
		Long: `Send notices of builds, workers and deployments to URLs, signed by the Standard Webhooks
specification. docs/notices.md lists the events. Needs the admin key in TAKT_ADMIN_KEY.`,
	}
	cmd.AddCommand(
		newNoticesListCommand(env), newNoticesCreateCommand(env), newNoticesMoveCommand(env), newNoticesShowCommand(env), newNoticesDeliveriesCommand(env), newNoticesRedriveCommand(env),
		newNoticesEnableCommand(env, "enable", true), newNoticesEnableCommand(env, "disable", false),
		newSubscriptionCommand(env, "rotate", "Give a subscription a new secret and show it, once", api.RotateSubscription, printSecret),
		newSubscriptionCommand(env, "test", "Send a notice of the type test", api.TestSubscription, cli.Says[api.None]("sent")),
		newSubscriptionCommand(env, "delete", "Delete a subscription and its notices", api.DeleteSubscription, cli.Says[api.None]("deleted")),
	)
	return cmd
}

// newSubscriptionCommand returns a command that calls an endpoint for a subscription.
func newSubscriptionCommand[Out any](env cli.Environment, name, short string, e api.Endpoint[api.SubscriptionIn, Out], show func(io.Writer, Out)) *cobra.Command {
	cmd := &cobra.Command{Use: name + " ID", Short: short, Args: cobra.ExactArgs(1)}
	why := cli.ReasonFlag(cmd)
	return cli.Order(env, cmd, func(ctx context.Context, c *client.Client, args []string) (Out, error) {
		return client.Call(ctx, c, e, api.SubscriptionIn{ID: args[0], Why: api.Why{Reason: *why}})
	}, show)
}

// printSecret shows the secret alone in a line, so that a script can take it. A subscription of
// GitHub has none.
func printSecret(w io.Writer, m api.MadeSubscription) { fmt.Fprintln(w, cmp.Or(m.Secret, m.ID)) }

func newNoticesListCommand(env cli.Environment) *cobra.Command {
	return cli.Ask(env, &cobra.Command{Use: "list", Short: "List subscriptions"},
		func(ctx context.Context, c *client.Client, _ []string) ([]api.Subscription, error) {
			list, err := client.Call(ctx, c, api.ListSubscriptions, api.None{})
			return list.Subscriptions, err
		}, printSubscriptions)
}

func newNoticesShowCommand(env cli.Environment) *cobra.Command {
	return cli.Ask(env, &cobra.Command{Use: "show ID", Short: "Show a subscription", Args: cobra.ExactArgs(1)},
		func(ctx context.Context, c *client.Client, args []string) (api.Subscription, error) {
			return client.Call(ctx, c, api.ShowSubscription, api.SubscriptionIn{ID: args[0]})
		}, func(w io.Writer, s api.Subscription) { printSubscriptions(w, []api.Subscription{s}) })
}

func printSubscriptions(w io.Writer, all []api.Subscription) {
	cli.List(w, []string{"ID", "STATE", "WAITING", "DEAD", "FILTER", "URL"}, all, func(s api.Subscription) []string {
		state := "enabled"
		if !s.Enabled {
			state = "disabled: " + s.Disabled
		}
		filter := slices.Clone(s.Events)
		for _, p := range s.Platforms {
			filter = append(filter, string(p))
		}
		for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
			filter = append(filter, k+"="+s.Labels[k])
		}
		return []string{s.ID, state, strconv.Itoa(s.Waiting), strconv.Itoa(s.Dead), cmp.Or(store.Lines(strings.Join(filter, ",")), "-"), s.URL}
	})
}

func newNoticesCreateCommand(env cli.Environment) *cobra.Command {
	var in api.CreateSubscriptionIn
	var platforms []string
	var tokenFile string
	cmd := cli.Order(env, &cobra.Command{
		Use: "create URL", Short: "Send notices to a URL and show the secret that signs them, once", Args: cobra.ExactArgs(1),
		Example: "  takt notices create https://ci.example.com/takt --event build.failed --platform ios --label team=app",
	}, func(ctx context.Context, c *client.Client, args []string) (api.MadeSubscription, error) {
		in.URL, in.Platforms = args[0], nil
		for _, p := range platforms {
			in.Platforms = append(in.Platforms, store.Platform(p))
		}
		var err error
		if in.GitHubToken, err = cli.ReadSecret("token of GitHub", tokenFile); err != nil {
			return api.MadeSubscription{}, cli.AsUsage(err)
		}
		return client.Call(ctx, c, api.CreateSubscription, in)
	}, printSecret)
	cmd.Flags().StringSliceVar(&in.Events, "event", nil, "only these events (default: all)")
	cmd.Flags().StringSliceVar(&platforms, "platform", nil, "only builds and workers of these platforms")
	cmd.Flags().StringToStringVar(&in.Labels, "label", nil, "only builds and workers with these labels")
	cmd.Flags().StringVar(&tokenFile, "github-token-file", "", "set statuses of commits (takt submit --github) with the token in this file; URL is https://api.github.com")
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why, for the audit")
	cli.Complete(cmd, "event", store.NoticeEvents()...)
	return cmd
}

func newNoticesMoveCommand(env cli.Environment) *cobra.Command {
	var change api.SubscriptionChange
	var tokenFile string
	cmd := cli.Order(env, &cobra.Command{
		Use: "move ID URL", Short: "Send a subscription's notices to another URL, with new secrets", Args: cobra.ExactArgs(2),
		Long: `Send a subscription's notices to another URL, with new secrets: show the new secret that signs,
once. A subscription that sets statuses of commits needs --github-token-file. Notices that are not
delivered yet are dropped.`,
	}, func(ctx context.Context, c *client.Client, args []string) (api.Subscription, error) {
		var err error
		if change.GitHubToken, err = cli.ReadSecret("token of GitHub", tokenFile); err != nil {
			return api.Subscription{}, cli.AsUsage(err)
		}
		change.URL, change.NewSecret = &args[1], tokenFile == ""
		return client.Call(ctx, c, api.UpdateSubscription, api.UpdateSubscriptionIn{ID: args[0], Body: change})
	}, func(w io.Writer, s api.Subscription) {
		printSecret(w, api.MadeSubscription{ID: s.ID, Secret: s.Secret})
	})
	cmd.Flags().StringVar(&tokenFile, "github-token-file", "", "set statuses of commits with the token in this file")
	cmd.Flags().StringVar(&change.Reason, "reason", "", "why, for the audit")
	return cmd
}

func newNoticesEnableCommand(env cli.Environment, name string, enabled bool) *cobra.Command {
	change := api.SubscriptionChange{Enabled: &enabled}
	cmd := cli.Order(env, &cobra.Command{Use: name + " ID", Short: strings.ToUpper(name[:1]) + name[1:] + " a subscription", Args: cobra.ExactArgs(1)},
		func(ctx context.Context, c *client.Client, args []string) (api.Subscription, error) {
			return client.Call(ctx, c, api.UpdateSubscription, api.UpdateSubscriptionIn{ID: args[0], Body: change})
		}, cli.Says[api.Subscription](name+"d"))
	cmd.Flags().StringVar(&change.Reason, "reason", "", "why, for the audit")
	return cmd
}

func newNoticesDeliveriesCommand(env cli.Environment) *cobra.Command {
	in := api.ListDeliveriesIn{}
	cmd := cli.Ask(env, &cobra.Command{Use: "deliveries ID", Short: "List a subscription's last notices, newest first", Args: cobra.ExactArgs(1)},
		func(ctx context.Context, c *client.Client, args []string) ([]api.Delivery, error) {
			in.ID = args[0]
			list, err := client.Call(ctx, c, api.ListDeliveries, in)
			return list.Deliveries, err
		}, func(w io.Writer, all []api.Delivery) {
			cli.List(w, []string{"NUMBER", "EVENT", "STATE", "ATTEMPTS", "CREATED", "NEXT", "ERROR"}, all, func(d api.Delivery) []string {
				next := "-"
				if d.NextAt != "" {
					next = cli.TimeText(d.NextAt)
				}
				return []string{strconv.FormatInt(d.Number, 10), d.Event, d.State, strconv.Itoa(d.Attempts), cli.TimeText(d.CreatedAt), next, cmp.Or(store.Lines(d.Error), "-")}
			})
		})
	cmd.Flags().IntVar(&in.Limit, "limit", 100, "the most to list")
	return cmd
}

func newNoticesRedriveCommand(env cli.Environment) *cobra.Command {
	in := api.RedriveNoticesIn{}
	cmd := cli.Order(env, &cobra.Command{Use: "redrive ID", Short: "Send dead notices again", Args: cobra.ExactArgs(1)},
		func(ctx context.Context, c *client.Client, args []string) (api.RedrivenNotices, error) {
			in.ID = args[0]
			return client.Call(ctx, c, api.RedriveNotices, in)
		}, func(w io.Writer, r api.RedrivenNotices) { fmt.Fprintln(w, r.Redriven, "redriven") })
	cmd.Flags().Int64Var(&in.Number, "number", 0, "only this delivery (default: all dead ones)")
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why, for the audit")
	return cmd
}
