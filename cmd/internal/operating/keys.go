package operating

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// Keys returns takt keys.
func Keys(env cli.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make, list, limit and revoke keys with names",
		Long: `Make, list, limit and revoke keys with names. Such a key may do less than the API key
and can be revoked alone. docs/keys.md says what each scope allows. A key is shown once.
Use it in TAKT_API_KEY in place of the API key, and with the scope operate or admin in
TAKT_ADMIN_KEY too. These commands need the admin key in TAKT_ADMIN_KEY.`,
	}
	cmd.AddCommand(newKeysListCommand(env), newKeysCreateCommand(env), newKeysSetCommand(env), newKeysEnrollCommand(env), newKeysRevokeCommand(env))
	return cmd
}

func newKeysListCommand(env cli.Environment) *cobra.Command {
	return cli.Ask(env, &cobra.Command{Use: "list", Short: "List keys, those in force first"},
		func(ctx context.Context, c *client.Client, _ []string) ([]api.Key, error) {
			list, err := client.Call(ctx, c, api.ListKeys, api.None{})
			return list.Keys, err
		},
		func(w io.Writer, keys []api.Key) {
			cli.List(w, []string{"NAME", "STATE", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "WEIGHT", "MAX PENDING", "MAX PRIORITY", "WORKER", "CREATED BY"}, keys, func(k api.Key) []string {
				at := func(v string) string {
					if v == "" {
						return "-"
					}
					return cli.TimeText(v)
				}
				return []string{k.Name, k.State, scopesText(k.Scopes), at(k.CreatedAt), at(k.ExpiresAt), at(k.LastUsedAt), strconv.Itoa(k.Weight), pendingText(k.MaxPending), strconv.Itoa(k.MaxPriority), boundText(k), store.Lines(k.CreatedBy)}
			})
		})
}

// pendingText shows how many builds of a key may be pending.
func pendingText(most int) string {
	if most == 0 {
		return "-"
	}
	return strconv.Itoa(most)
}

// boundText shows which worker a key may be.
func boundText(k api.Key) string {
	if k.Enrolled {
		return cmp.Or(k.Worker, "the first")
	}
	return cmp.Or(k.Worker, "-")
}

func scopesText(scopes []store.Scope) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(scopes), " ", ","), "[]")
}

func newKeysCreateCommand(env cli.Environment) *cobra.Command {
	var in api.CreateKeyIn
	var scopes []string
	cmd := cli.Order(env, &cobra.Command{
		Use: "create NAME --scope SCOPES", Short: "Make a key and show it, once", Args: cobra.ExactArgs(1),
		Long: `Make a key and show it, once; takt stores only its SHA-256. A name is never used
again, because builds and the audit refer to it. The key is valid at once, and within a
second on other controllers. Needs the admin key in TAKT_ADMIN_KEY.`,
		Example: "  takt keys create ci --scope submit --expires 90d",
	}, func(ctx context.Context, c *client.Client, args []string) (api.MadeKey, error) {
		in.Name, in.Scopes = args[0], nil
		for _, s := range scopes {
			in.Scopes = append(in.Scopes, store.Scope(s))
		}
		if len(scopes) == 0 {
			return api.MadeKey{}, cli.Usage("--scope is required: some of %s", scopesText(store.Scopes()))
		}
		return client.Call(ctx, c, api.CreateKey, in)
	}, printMadeKey)
	cmd.Flags().StringSliceVar(&scopes, "scope", nil, "scopes: one or more of "+scopesText(store.Scopes()))
	cmd.Flags().StringVar(&in.Expires, "expires", "", "when the key expires, such as 90d or 12h from now (default: never)")
	cmd.Flags().IntVar(&in.Weight, "weight", 1, weightUsage)
	cmd.Flags().IntVar(&in.MaxPending, "max-pending", 0, maxPendingUsage)
	cmd.Flags().IntVar(&in.MaxPriority, "max-priority", 0, maxPriorityUsage)
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why, for the audit")
	cli.Complete(cmd, "scope", strings.Split(scopesText(store.Scopes()), ",")...)
	return cmd
}

// How flags of the share of a key are described.
const (
	weightUsage     = "turns that the key has for each turn of a key of weight 1: 1 to 1000"
	maxPendingUsage = "maximum number of the key's builds that may be pending; further submits are refused; 0: no limit"
	// With the scope operate a key may submit with any priority.
	maxPriorityUsage = "highest priority with which the key may submit: -10 to 10; higher ones are refused"
)

func newKeysSetCommand(env cli.Environment) *cobra.Command {
	var in api.LimitKeyIn
	var weight, most, priority int
	var worker string
	var cmd *cobra.Command
	cmd = cli.Ask(env, &cobra.Command{
		Use: "set NAME", Short: "Set the limits of a key (weight, pending builds, priority) and its worker", Args: cobra.ExactArgs(1),
		Long: `Set the weight of a key, how many of its builds may be pending, and the highest
priority with which it may submit. While builds of several keys wait for the same
platform at the same priority, keys take turns, and a key
of weight 3 has three turns for each turn of a key of weight 1. Builds that are pending keep
their positions.

A key that a worker has enrolled is for the first worker id that registers with it. Free
it with --worker '' when its machine was set up anew, or bind any key to the ID of a worker.
Needs the admin key in TAKT_ADMIN_KEY.`,
		Example: "  takt keys set ci --weight 3 --max-pending 100\n  takt keys set mini-01-4x7qk2aa --worker ''",
	}, func(ctx context.Context, c *client.Client, args []string) (api.Key, error) {
		in.Name = args[0]
		if cmd.Flags().Changed("weight") {
			in.Body.Weight = &weight
		}
		if cmd.Flags().Changed("max-pending") {
			in.Body.MaxPending = &most
		}
		if cmd.Flags().Changed("max-priority") {
			in.Body.MaxPriority = &priority
		}
		if cmd.Flags().Changed("worker") {
			in.Body.Worker = &worker
		}
		return client.Call(ctx, c, api.LimitKey, in)
	}, func(w io.Writer, k api.Key) {
		fmt.Fprintf(w, "weight %d, max pending %s, max priority %d, worker %s\n", k.Weight, pendingText(k.MaxPending), k.MaxPriority, boundText(k))
	})
	cmd.Flags().IntVar(&weight, "weight", 1, weightUsage)
	cmd.Flags().IntVar(&most, "max-pending", 0, maxPendingUsage)
	cmd.Flags().IntVar(&priority, "max-priority", 0, maxPriorityUsage)
	cmd.Flags().StringVar(&worker, "worker", "", "id of the only worker that the key may be; '' for any, or of an enrolled key for the next that registers")
	cmd.Flags().StringVar(&in.Body.Reason, "reason", "", "why, for the audit")
	return cmd
}

// printMadeKey shows the key alone in a line, so that a script can take it.
func printMadeKey(w io.Writer, k api.MadeKey) { fmt.Fprintln(w, k.Key) }

func newKeysEnrollCommand(env cli.Environment) *cobra.Command {
	in := api.CreateKeyIn{Scopes: []store.Scope{store.ScopeEnroll}}
	cmd := cli.Order(env, &cobra.Command{
		Use: "enroll", Short: "Make a token with which one worker gets a key of its own",
		Long: `Make a token with which one worker gets a key of its own: takt worker --enroll TOKEN,
or, as root, takt worker enroll TOKEN. It is shown once, can be used once, and expires. Needs the admin key in TAKT_ADMIN_KEY.`,
	}, func(ctx context.Context, c *client.Client, _ []string) (api.MadeKey, error) {
		in.Name = "enroll-" + strings.ToLower(rand.Text()[:12])
		return client.Call(ctx, c, api.CreateKey, in)
	}, printMadeKey)
	cmd.Flags().StringVar(&in.Expires, "expires", "1h", "when the token expires unless it was used")
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why, for the audit")
	return cmd
}

func newKeysRevokeCommand(env cli.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Revoke a key for good", Args: cobra.ExactArgs(1),
		Long: `Revoke a key for good. It becomes invalid on all controllers at once, or within two
seconds on one that misses the notification. Its sessions and streams end too. Needs
the admin key in TAKT_ADMIN_KEY.`,
	}
	why := cli.ReasonFlag(cmd)
	return cli.Ask(env, cmd, func(ctx context.Context, c *client.Client, args []string) (api.None, error) {
		return client.Call(ctx, c, api.RevokeKey, api.RevokeKeyIn{Name: args[0], Why: api.Why{Reason: *why}})
	}, cli.Says[api.None]("revoked"))
}
