package operating

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/store"
)

// Notices returns takt notices.
func Notices(env cli.Environment) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "notices", Short: "Send notices of builds, workers and deployments to URLs",
		Long: `Send notices of builds, workers and deployments to URLs, signed by the Standard Webhooks
specification. docs/notices.md lists the events. Needs the admin key in TAKT_ADMIN_KEY.`,
	},
		cli.Row(env, &cobra.Command{Use: "list", Short: "List subscriptions"}, cli.Ask(api.ListSubscriptions),
			cli.Part(func(l api.Subscriptions) []api.Subscription { return l.Subscriptions }, printSubscriptions), nil),
		cli.Row(env, &cobra.Command{
			Use: "create URL", Short: "Send notices to a URL and show the secret that signs them, once",
			Example: "  takt notices create https://ci.example.com/takt --event build.failed --platform ios --label team=app",
		}, cli.Order(api.CreateSubscription), cli.Text(printSecret), func(in *api.CreateSubscriptionIn, f *cli.Flags) {
			cli.Arg(f, &in.URL)
			f.StringSliceVar(&in.Events, "event", nil, "only these events (default: all)")
			cli.Complete(f.Command, "event", store.NoticeEvents()...)
			cli.Slice(f, &in.Platforms, "platform", "only builds and workers of these platforms")
			f.StringToStringVar(&in.Labels, "label", nil, "only builds and workers with these labels")
			gitHubToken(f, &in.GitHubToken, "set statuses of commits (takt submit --github) with the token in this file; URL is https://api.github.com")
			f.Reason(&in.Reason)
		}),
		cli.Row(env, &cobra.Command{
			Use: "move ID URL", Short: "Send a subscription's notices to another URL, with new secrets",
			Long: `Send a subscription's notices to another URL, with new secrets: show the new secret that signs,
once. A subscription that sets statuses of commits needs --github-token-file. Notices that are not
delivered yet are dropped.`,
		}, cli.Order(api.UpdateSubscription), cli.Text(func(w io.Writer, s api.Subscription) {
			printSecret(w, api.MadeSubscription{ID: s.ID, Secret: s.Secret})
		}), func(in *api.UpdateSubscriptionIn, f *cli.Flags) {
			in.Body.URL = new(string)
			cli.Arg(f, &in.ID)
			cli.Arg(f, in.Body.URL)
			file := gitHubToken(f, &in.Body.GitHubToken, "set statuses of commits with the token in this file")
			f.Set(func() { in.Body.NewSecret = *file == "" })
			f.Reason(&in.Body.Reason)
		}),
		cli.Row(env, &cobra.Command{Use: "show ID", Short: "Show a subscription"}, cli.Ask(api.ShowSubscription), cli.Text(func(w io.Writer, s api.Subscription) {
			printSubscriptions(w, []api.Subscription{s})
		}), func(in *api.SubscriptionIn, f *cli.Flags) { cli.Arg(f, &in.ID) }),
		cli.Row(env, &cobra.Command{Use: "deliveries ID", Short: "List a subscription's last notices, newest first"}, cli.Ask(api.ListDeliveries),
			cli.Rows(func(l api.Deliveries) []api.Delivery { return l.Deliveries }, []string{"NUMBER", "EVENT", "STATE", "ATTEMPTS", "CREATED", "NEXT", "ERROR"}, deliveryRow),
			func(in *api.ListDeliveriesIn, f *cli.Flags) {
				cli.Arg(f, &in.ID)
				f.IntVar(&in.Limit, "limit", 100, "the most to list")
			}),
		cli.Row(env, &cobra.Command{Use: "redrive ID", Short: "Send dead notices again"}, cli.Order(api.RedriveNotices), cli.Text(func(w io.Writer, r api.RedrivenNotices) {
			fmt.Fprintln(w, r.Redriven, "redriven")
		}), func(in *api.RedriveNoticesIn, f *cli.Flags) {
			cli.Arg(f, &in.ID)
			f.Int64Var(&in.Number, "number", 0, "only this delivery (default: all dead ones)")
			f.Reason(&in.Reason)
		}),
		cli.Row(env, &cobra.Command{Use: "enable ID", Short: "Enable a subscription"}, cli.Order(api.UpdateSubscription), cli.Says[api.Subscription]("enabled"), enabled(true)),
		cli.Row(env, &cobra.Command{Use: "disable ID", Short: "Disable a subscription"}, cli.Order(api.UpdateSubscription), cli.Says[api.Subscription]("disabled"), enabled(false)),
		cli.Row(env, &cobra.Command{Use: "rotate ID", Short: "Give a subscription a new secret and show it, once"},
			cli.Order(api.RotateSubscription), cli.Text(printSecret), subscription),
		cli.Row(env, &cobra.Command{Use: "test ID", Short: "Send a notice of the type test"}, cli.Order(api.TestSubscription), cli.Says[api.None]("sent"), subscription),
		cli.Row(env, &cobra.Command{Use: "delete ID", Short: "Delete a subscription and its notices"}, cli.Order(api.DeleteSubscription), cli.Says[api.None]("deleted"), subscription),
	)
}

func subscription(in *api.SubscriptionIn, f *cli.Flags) {
	cli.Arg(f, &in.ID)
	f.Reason(&in.Reason)
}

func enabled(yes bool) func(in *api.UpdateSubscriptionIn, f *cli.Flags) {
	return func(in *api.UpdateSubscriptionIn, f *cli.Flags) {
		in.Body.Enabled = &yes
		cli.Arg(f, &in.ID)
		f.Reason(&in.Body.Reason)
	}
}

// gitHubToken adds the flag that names the file of a token, and returns its value.
func gitHubToken(f *cli.Flags, to *string, usage string) (file *string) {
	file = f.String("github-token-file", "", usage)
	f.Check(func() (err error) {
		*to, err = cli.ReadSecret("token of GitHub", *file)
		return cli.AsUsage(err)
	})
	return file
}

// printSecret shows the secret alone in a line, so that a script can take it. A subscription of
// GitHub has none.
func printSecret(w io.Writer, m api.MadeSubscription) { fmt.Fprintln(w, cmp.Or(m.Secret, m.ID)) }

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

func deliveryRow(d api.Delivery) []string {
	return []string{strconv.FormatInt(d.Number, 10), d.Event, d.State, strconv.Itoa(d.Attempts), cli.TimeText(d.CreatedAt), timeOrNone(d.NextAt), cmp.Or(store.Lines(d.Error), "-")}
}
