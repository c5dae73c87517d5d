package operating

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/store"
)

// Keys returns takt keys.
func Keys(env cli.Environment) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "keys", Short: "Make, list, limit and revoke keys with names",
		Long: `Make, list, limit and revoke keys with names. Such a key may do less than the API key
and can be revoked alone. docs/keys.md says what each scope allows. A key is shown once.
Use it in TAKT_API_KEY in place of the API key, and with the scope operate or admin in
TAKT_ADMIN_KEY too. These commands need the admin key in TAKT_ADMIN_KEY.`,
	},
		cli.Row(env, &cobra.Command{Use: "list", Short: "List keys, those in force first"}, cli.Ask(api.ListKeys), cli.Rows(func(k api.Keys) []api.Key { return k.Keys },
			[]string{"NAME", "STATE", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "WEIGHT", "MAX PENDING", "MAX PRIORITY", "WORKER", "CREATED BY"}, keyRow), nil),
		cli.Row(env, &cobra.Command{
			Use: "create NAME --scope SCOPES", Short: "Make a key and show it, once",
			Long: `Make a key and show it, once; takt stores only its SHA-256. A name is never used
again, because builds and the audit refer to it. The key is valid at once, and within a
second on other controllers. Needs the admin key in TAKT_ADMIN_KEY.`,
			Example: "  takt keys create ci --scope submit --expires 90d",
		}, cli.Order(api.CreateKey), cli.Text(printMadeKey), func(in *api.CreateKeyIn, f *cli.Flags) {
			cli.Arg(f, &in.Name)
			cli.Slice(f, &in.Scopes, "scope", "scopes: one or more of "+scopesText(store.Scopes()))
			cli.Complete(f.Command, "scope", strings.Split(scopesText(store.Scopes()), ",")...)
			f.StringVar(&in.Expires, "expires", "", "when the key expires, such as 90d or 12h from now (default: never)")
			f.IntVar(&in.Weight, "weight", 1, weightUsage)
			f.IntVar(&in.MaxPending, "max-pending", 0, maxPendingUsage)
			f.IntVar(&in.MaxPriority, "max-priority", 0, maxPriorityUsage)
			f.Reason(&in.Reason)
			f.Check(func() error {
				if len(in.Scopes) == 0 {
					return cli.Usage("--scope is required: some of %s", scopesText(store.Scopes()))
				}
				return nil
			})
		}),
		cli.Row(env, &cobra.Command{
			Use: "set NAME", Short: "Set the limits of a key (weight, pending builds, priority) and its worker",
			Long: `Set the weight of a key, how many of its builds may be pending, and the highest
priority with which it may submit. While builds of several keys wait for the same
platform at the same priority, keys take turns, and a key
of weight 3 has three turns for each turn of a key of weight 1. Builds that are pending keep
their positions.

A key that a worker has enrolled is for the first worker id that registers with it. Free
it with --worker '' when its machine was set up anew, or bind any key to the ID of a worker.
Needs the admin key in TAKT_ADMIN_KEY.`,
			Example: "  takt keys set ci --weight 3 --max-pending 100\n  takt keys set mini-01-4x7qk2aa --worker ''",
		}, cli.Ask(api.LimitKey), cli.Text(printLimits), func(in *api.LimitKeyIn, f *cli.Flags) {
			cli.Arg(f, &in.Name)
			cli.Given(f, &in.Body.Weight, "weight", f.Int("weight", 1, weightUsage))
			cli.Given(f, &in.Body.MaxPending, "max-pending", f.Int("max-pending", 0, maxPendingUsage))
			cli.Given(f, &in.Body.MaxPriority, "max-priority", f.Int("max-priority", 0, maxPriorityUsage))
			cli.Given(f, &in.Body.Worker, "worker",
				f.String("worker", "", "id of the only worker that the key may be; '' for any, or of an enrolled key for the next that registers"))
			f.Reason(&in.Body.Reason)
		}),
		cli.Row(env, &cobra.Command{
			Use: "enroll", Short: "Make a token with which one worker gets a key of its own",
			Long: `Make a token with which one worker gets a key of its own: takt worker --enroll TOKEN,
or, as root, takt worker enroll TOKEN. It is shown once, can be used once, and expires. Needs the admin key in TAKT_ADMIN_KEY.`,
		}, cli.Order(api.CreateKey), cli.Text(printMadeKey), func(in *api.CreateKeyIn, f *cli.Flags) {
			in.Scopes = []store.Scope{store.ScopeEnroll}
			f.Set(func() { in.Name = "enroll-" + strings.ToLower(rand.Text()[:12]) })
			f.StringVar(&in.Expires, "expires", "1h", "when the token expires unless it was used")
			f.Reason(&in.Reason)
		}),
		cli.Row(env, &cobra.Command{
			Use: "revoke NAME", Short: "Revoke a key for good",
			Long: `Revoke a key for good. It becomes invalid on all controllers at once, or within two
seconds on one that misses the notification. Its sessions and streams end too. Needs
the admin key in TAKT_ADMIN_KEY.`,
		}, cli.Ask(api.RevokeKey), cli.Says[api.None]("revoked"), func(in *api.RevokeKeyIn, f *cli.Flags) {
			cli.Arg(f, &in.Name)
			f.Reason(&in.Reason)
		}),
	)
}

// How flags of the share of a key are described.
const (
	weightUsage     = "turns that the key has for each turn of a key of weight 1: 1 to 1000"
	maxPendingUsage = "maximum number of the key's builds that may be pending; further submits are refused; 0: no limit"
	// With the scope operate a key may submit with any priority.
	maxPriorityUsage = "highest priority with which the key may submit: -10 to 10; higher ones are refused"
)

func keyRow(k api.Key) []string {
	return []string{
		k.Name, k.State, scopesText(k.Scopes), timeOrNone(k.CreatedAt), timeOrNone(k.ExpiresAt), timeOrNone(k.LastUsedAt),
		strconv.Itoa(k.Weight), pendingText(k.MaxPending), strconv.Itoa(k.MaxPriority), boundText(k), store.Lines(k.CreatedBy),
	}
}

// timeOrNone shows a time that may be missing.
func timeOrNone(v string) string {
	if v == "" {
		return "-"
	}
	return cli.TimeText(v)
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

// printMadeKey shows the key alone in a line, so that a script can take it.
func printMadeKey(w io.Writer, k api.MadeKey) { fmt.Fprintln(w, k.Key) }

func printLimits(w io.Writer, k api.Key) {
	fmt.Fprintf(w, "weight %d, max pending %s, max priority %d, worker %s\n", k.Weight, pendingText(k.MaxPending), k.MaxPriority, boundText(k))
}
