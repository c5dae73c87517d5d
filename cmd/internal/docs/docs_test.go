package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/settings"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/dashboard"
)

//go:generate env TAKT_TEST_WRITE_DOCS=1 go test -count=1 -run DocsOf -timeout 2m .

var updateDocs = os.Getenv("TAKT_TEST_WRITE_DOCS") != ""

// noVariables is an empty environment.
func noVariables(string) (string, bool) { return "", false }

// generated compares a page of docs with what the code says, or writes it in go generate.
func generated(t *testing.T, name, want string) {
	t.Helper()
	path := takttest.File("docs", name)
	if updateDocs {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "docs/%s is stale: make docs", name)
}

func TestDocsOfSettingsAreCurrent(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	out.WriteString(`# Settings of takt serve

Written by ` + "`make docs`" + ` from the table in cmd/internal/settings/settings.go; a test keeps it current.

Flags win over the environment, the environment over the YAML file of ` + "`--config`" + `, and the
file over the defaults. A key of the YAML file is a flag's name with ` + "`_` for `-`" + `, such as
` + "`queue_limit: 500`" + `. Times are written ` + "`90s`, `5m` or `720h`" + `, or as seconds. An
unknown flag, key or ` + "`TAKT_…`" + ` variable is an error that names the nearest known one; variables
of clients, of builds, and those that Kubernetes sets for a service named takt are ignored. ` + "`takt serve --check`" + ` prints the effective ones, secrets masked. ` + "`takt storage`" + `,
` + "`backup`, `restore`, `database` and `rekey`" + ` take the same.
`)
	def := settings.Default("")
	group := ""
	for _, s := range settings.Table(&def) {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&out, "\n## %s\n\n| flag | environment | default | meaning |\n|---|---|---|---|\n", group)
		}
		value := s.Otherwise
		if v := s.Get(); v != "" {
			value = "`" + v + "`"
		}
		meaning := strings.ReplaceAll(s.Usage, "|", `\|`)
		fmt.Fprintf(&out, "| `--%s` | `%s` | %s | %s |\n", s.Name, strings.Join(s.Env(), "`, `"), value, meaning)
	}
	out.WriteString(`
## Settings of clients

Clients and ` + "`takt worker`" + ` read ` + "`TAKT_URL` (default `" + cli.DefaultURL + "`), `TAKT_API_KEY`" + ` or
` + "`TAKT_API_KEY_FILE`, `TAKT_CA_FILE`" + ` (PEM, certificate authorities to trust) and, for
` + "`takt tree`, `heijunka`, `restart`, `audit`, `repair`, `keys`, `throttle`, `top`, `doctor` and `debug`, `TAKT_ADMIN_KEY`. `takt deploy`" + ` reads
` + "`TAKT_GITHUB_TOKEN`" + `. Their flags are in [cli.md](cli.md).
`)
	generated(t, "settings.md", out.String())
}

// The package's settings file names every setting, as a comment.
func TestDocsOfPackagedSettingsAreCurrent(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	out.WriteString(`# Settings of takt.service. This file is written by make docs; what is changed here is kept
# by upgrades. Each setting stands here with its default. The environment and flags would
# overrule it; systemctl edit takt adds either. Try it: takt serve --config FILE --check.
# Afterwards: systemctl restart takt.

data_dir: /var/lib/takt
`)
	def := settings.Default("")
	group := ""
	for _, s := range settings.Table(&def) {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&out, "\n## %s\n", group)
		}
		if s.Key() == "data_dir" {
			continue // above
		}
		value, err := yaml.Marshal(s.Get())
		require.NoError(t, err)
		fmt.Fprintf(&out, "\n%s#%s: %s", comment(s.Usage), s.Key(), value)
	}
	generated(t, filepath.Join("..", "deploy", "package", "takt.yaml"), out.String())

	for name, text := range map[string]string{
		"as it is":               out.String(),
		"with every default set": regexp.MustCompile(`(?m)^#([a-z])`).ReplaceAllString(out.String(), "$1"),
	} {
		file := filepath.Join(t.TempDir(), "takt.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		got, err := settings.Load(settings.Sources{Lookup: noVariables, File: file})
		require.NoError(t, err, name)
		want := settings.Default("/var/lib/takt")
		for _, s := range settings.Table(&want) {
			for _, have := range settings.Table(&got) {
				if have.Name == s.Name {
					require.Equal(t, s.Get(), have.Get(), "%s: %s", name, s.Name)
				}
			}
		}
	}
}

// comment breaks text into lines of comments.
func comment(text string) string {
	var out strings.Builder
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > 90 {
			out.WriteString(line + "\n")
			line = "#"
		}
		line += " " + word
	}
	return out.String() + line + "\n"
}

func TestDocsOfCommandsAreCurrent(t *testing.T) {
	t.Parallel()
	root := command.New(cli.Environment(noVariables))
	var out strings.Builder
	out.WriteString("# Commands\n\nWritten by `make docs` from the commands themselves; a test keeps it current.\n`takt help COMMAND` shows the same.\n\n" + root.Long + "\n")
	clients := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(cli.Remote).AddFlags(clients)
	fmt.Fprintf(&out, "\n## Flags of every client command\n\nThese are not repeated below.\n\n```\n%s```\n", clients.FlagUsages())
	out.WriteString("\n## JSON\n\nWith `--json` a command writes its result on one line: a list as an array, times as in RFC 3339.\nNames are schemas of `/openapi.yaml`. An error is a problem document (RFC 9457) on standard\nerror.\n\n| command | result |\n|---|---|\n")
	schemas, err := os.ReadFile(takttest.File("http", "openapi.yaml"))
	require.NoError(t, err)
	found := map[string]bool{}
	for _, r := range results {
		fmt.Fprintf(&out, "| `%s` | %s |\n", r[0], r[1])
		for _, name := range regexp.MustCompile("`([A-Z]\\w+)`").FindAllStringSubmatch(r[1], -1) {
			require.Contains(t, string(schemas), "\n    "+name[1]+":\n", r[0])
		}
		cmd, _, err := root.Find(strings.Fields(r[0]))
		require.NoError(t, err)
		require.NotNil(t, cmd.Flags().Lookup("json"), r[0])
		found[cmd.CommandPath()] = true
	}
	describeCommands(&out, root, func(cmd *cobra.Command) {
		if cmd.Runnable() && cmd.Flags().Lookup("json") != nil && cmd.Flags().Lookup("url") != nil {
			require.True(t, found[cmd.CommandPath()], "%s: what is its JSON?", cmd.CommandPath())
		}
	})
	generated(t, "cli.md", out.String())
}

// The table says which scope each route needs, from the endpoints that the server checks.
func TestDocsOfKeysAreCurrent(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	out.WriteString(`# Keys with names

Written by ` + "`make docs`" + ` from the endpoints; a test keeps it current.

Besides the API key and the admin key of the settings, takt has keys with names. Each allows what
its scopes allow, and can end alone: when it expires, or by ` + "`takt keys revoke`" + `.

` + "```" + `
takt keys create ci --scope submit --expires 90d   # shows the key, once
takt keys set ci --weight 3 --max-pending 100 --max-priority 2
takt keys list
takt keys revoke ci
takt keys enroll                                   # a token for takt worker enroll
takt keys set mini-01-4x7qk2aa --worker ''         # frees an enrolled key for another machine
` + "```" + `

- Send a key in ` + "`X-API-Key`" + `; for ` + "`/admin`" + ` either that or ` + "`X-Admin-Key`" + `. A key without the scope
  gets 403 ` + "`missing_scope`" + `. An unknown, expired or revoked key gets 403:
  ` + "`invalid_api_key`" + `, or ` + "`forbidden`" + ` in ` + "`X-Admin-Key`" + `.
- Only the SHA-256 of a key is stored. It needs no salt, because keys are 256 random bits. Each
  controller has all digests in memory, so no request reads the database for a key. A new key is
  valid at once, and within a second on other controllers.
- A revoked key becomes invalid on all controllers at once, or within two seconds on one that
  misses the notification. Its sessions and streams end at the same time, parked polls within a
  minute. A controller that can't reach the database continues with the keys that it knew last.
- The name of a key is shown in the builds that it submitted, in the audit, and in the log of
  requests (level debug). So a name is never used again.
- While several keys have pending builds of the same platform and priority, they take turns. A key
  of weight 3 has three turns for each turn of a key of weight 1. ` + "`--max-pending`" + ` limits the
  pending builds of a key; further submits get 429 ` + "`key_queue_full`" + `.
- A key submits with a priority of at most ` + "`--max-priority`" + `, by default 0; a higher one gets 403
  ` + "`priority_too_high`" + `, also for a retry of a build that has one. Keys from before this limit have
  10, and those with the scope operate, like the API key, may submit with any.
- Builds of at most 256 different platforms and requirements can be pending. One key may have as
  many of them as it leaves to others (so at most 128), the API key all but 32. Further
  requirements get 429 ` + "`key_classes_full`" + `; requirements for which builds wait already are always
  taken.
- Builds of a key get the [secrets](secrets.md) that belong to it. Who sets them needs the scope operate,
  not submit, and nobody reads them.
- The time of a key's last use is recorded once a minute.
- To log in to the dashboard a key needs the scope read. A page then needs the scope of the API's
  endpoint that gives the same data, see the last table, and its forms that of the endpoint that
  they call. A session of the API key opens all pages but Keys, Notices, the audit and orders to the
  tree, which need the admin key; the forms of Heijunka, Throttle and System do as well.
- Only those who may list workers are told their names and labels by ` + "`/why`" + `: with submit alone, or
  with a build's token, it says how many workers lack what. The worker that has a build, or had it,
  is named to whoever may see the build.
- Exemplars in ` + "`/metrics`" + ` need the scope read.

| scope | allows to |
|---|---|
| ` + "`submit`" + ` | submit builds; list, see, download, cancel and retry the key's own builds |
| ` + "`read`" + ` | see all builds, their logs and files, the workers and the deployments |
| ` + "`worker`" + ` | be a worker: register, poll, report, and get what a build that it holds needs |
| ` + "`webhook`" + ` | see and set the rates of HubSpot's actions (HubSpot itself sends a signature, not a key) |
| ` + "`operate`" + ` | change all builds, workers, deployments, secrets, time-outs, queues and load levelling |
| ` + "`admin`" + ` | do everything that the other scopes allow, and use the tree, audit, keys, profiles and repairs |
| ` + "`enroll`" + ` | get one worker's key, once; only the tokens of ` + "`takt keys enroll`" + ` have it |

A key that was made with the scope worker can, like the API key, act as any worker, unless an
operator binds it to one: ` + "`takt keys set NAME --worker ID`" + `. A key that a worker got for a token is
bound by itself:

- It belongs to the first worker id that registers with it (if it was enrolled before an upgrade
  from a version without this, at the first registration after it). With another id every route
  answers 403 ` + "`worker_mismatch`" + `.
- While the worker's process lives, another one with the same key and id gets 409
  ` + "`duplicate_worker`" + `, also if it sends no ` + "`X-Worker-Instance`" + `.
- Both are in the audit and the log, once a minute for each key, and on the page Fleet.
- When the worker's machine was set up anew, free the key: ` + "`takt keys set NAME --worker ''`" + `. Deleting
  the worker frees it too.
- Controllers learn of a binding as of a new key, within a second. 0.1.0 ignores it.
- ` + "`takt worker enroll TOKEN`" + `, run once by root, writes the key where builds can't read it
  (` + "`/etc/takt/worker.env`" + `). ` + "`takt worker --enroll TOKEN`" + ` keeps it in the state directory, which builds
  that run as the worker's user can read. The worker, ` + "`takt doctor`" + ` and the page Fleet warn of that.

## Which route needs which scope

"Own" means that ` + "`submit`" + ` is enough for builds that the key itself submitted. Routes that are
not listed need no key.

| route | scope | own |
|---|---|---|
`)
	for _, r := range api.Routes() {
		if r.Scope != "" {
			fmt.Fprintf(&out, "| `%s %s` | `%s` | %s |\n", r.Method, r.Path, r.Scope, map[bool]string{true: "yes"}[r.Own])
		}
	}
	out.WriteString("\n## Which page needs which scope\n\nFor a session of a key with a name.\n\n| page | scope |\n|---|---|\n")
	for _, p := range dashboard.PageScopes() {
		fmt.Fprintf(&out, "| `%s` | `%s` |\n", p[0], p[1])
	}
	generated(t, "keys.md", out.String())
}

// results are what commands write with --json.
var results = [][2]string{
	{"submit", "`Submitted` without the token; with --wait then `BuildStatus`"},
	{"list", "array of `Build`"},
	{"status", "`BuildStatus`"},
	{"why", "`BuildWhy`"},
	{"explain", "`BuildTimeline`"},
	{"logs", "`LogEntry`, one a line"},
	{"download", "`{file, bytes, sha256}`"},
	{"cancel", "`Cancelled`; with --label `{builds}`, an array of `OneChanged`"},
	{"retry", "`Retried` without the token; with --wait then `BuildStatus`; with --label `{builds}`, an array of `OneChanged` without tokens"},
	{"priority", "`Build`"},
	{"requeue", "`Build`"},
	{"workers", "array of `Worker`"},
	{"workers list", "array of `Worker`"},
	{"workers show", "`Worker`"},
	{"workers drain", "`Worker`"},
	{"workers resume", "`Worker`"},
	{"workers delete", "`Unregistered`"},
	{"tree", "`TreeNode`"},
	{"restart", "`TreeNode`; with --dry-run, or if takt itself restarts, `Plan`"},
	{"start", "`TreeNode`; with --dry-run `Plan`"},
	{"heijunka", "`Heijunka`"},
	{"heijunka limits", "`Heijunka`"},
	{"heijunka affinity", "`Heijunka`"},
	{"heijunka scale", "`Heijunka`"},
	{"heijunka surge", "`Heijunka`"},
	{"heijunka rebalance", "`HeijunkaRebalance`"},
	{"timeouts", "`HeartbeatSettings`"},
	{"audit", "array of `AuditEntry`"},
	{"keys list", "array of `Key`"},
	{"keys create", "`MadeKey`"},
	{"keys set", "`Key`"},
	{"keys enroll", "`MadeKey`"},
	{"keys revoke", "none"},
	{"secret set", "`Secret`"},
	{"attention", "array of `NeedsAttention`"},
	{"attention acknowledge", "`Attention`"},
	{"attention recall", "`Attention`"},
	{"secret list", "array of `Secret`"},
	{"secret remove", "none"},
	{"notices list", "array of `Subscription`"},
	{"notices create", "`MadeSubscription`"},
	{"notices move", "`Subscription`"},
	{"notices show", "`Subscription`"},
	{"notices enable", "`Subscription`"},
	{"notices disable", "`Subscription`"},
	{"notices rotate", "`MadeSubscription`"},
	{"notices test", "none"},
	{"notices deliveries", "array of `Delivery`"},
	{"notices redrive", "`RedrivenNotices`"},
	{"notices delete", "none"},
	{"audit check", "array of `Invariant`"},
	{"repair", "array of `Invariant`"},
	{"throttle queues", "array of `ThrottleQueue`"},
	{"throttle config", "array of `ThrottleConfig`, one with ACTION; with --delete `{deleted}`"},
	{"throttle pause", "`ThrottleQueue`"},
	{"throttle resume", "`ThrottleQueue`"},
	{"throttle redrive", "`Redriven`"},
	{"deploy", "`Deployment`"},
	{"deployments", "array of `Deployment`"},
	{"deployment", "`Deployment`"},
	{"deployment cancel", "`Deployment`"},
	{"deployment pause", "`Deployment`"},
	{"deployment resume", "`Deployment`"},
	{"deployment retry", "`DeploymentRetried`"},
	{"top", "none: it is for a terminal"},
	{"worker", "its log"},
	{"worker enroll", "`{name, file}`"},
	{"ready", "`Status`"},
	{"doctor", "`{check, result, found, mend}`, one a line; result is ok, warning or failed"},
	{"debug bundle", "`{file, missing}`"},
}

func describeCommands(out *strings.Builder, parent *cobra.Command, check func(cmd *cobra.Command)) {
	for _, cmd := range parent.Commands() {
		if cmd.Hidden {
			continue
		}
		about := cmd.Long
		if about == "" {
			about = cmd.Short + "."
		}
		fmt.Fprintf(out, "\n## %s\n\n```\n%s\n```\n", cmd.CommandPath(), strings.TrimRight(about, "\n"))
		if cmd.Runnable() {
			fmt.Fprintf(out, "\nUsage: `%s`\n", cmd.UseLine())
		}
		if cmd.Example != "" {
			fmt.Fprintf(out, "\n```\n%s\n```\n", cmd.Example)
		}
		describeFlags(out, cmd)
		check(cmd)
		describeCommands(out, cmd, check)
	}
}

// describeFlags leaves out the settings of takt serve, which have a page, and the
// flags that all clients have.
func describeFlags(out *strings.Builder, cmd *cobra.Command) {
	own, common := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	serves := cmd.Flags().Lookup("data-dir") != nil
	if serves {
		settings.AddFlags(common)
	} else if cmd.Flags().Lookup("ca-file") != nil {
		new(cli.Remote).AddFlags(common)
	}
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if common.Lookup(f.Name) == nil {
			own.AddFlag(f)
		}
	})
	if own.HasAvailableFlags() {
		fmt.Fprintf(out, "\n```\n%s```\n", own.FlagUsages())
	}
	if serves {
		out.WriteString("\nand every setting of [settings.md](settings.md).\n")
	}
}
