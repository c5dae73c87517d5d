package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var updateDocs = flag.Bool("update", false, "write the generated pages of docs/ anew")

// generated compares a page of docs with what the code says, or writes it.
func generated(t *testing.T, name, want string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", name)
	if *updateDocs {
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

Written by ` + "`make docs`" + ` from the table in cmd/takt/settings.go; a test keeps it current.

Flags win over the environment, that over the YAML file of ` + "`--config`" + `, that over the
defaults. A key of the YAML file is a flag's name with ` + "`_` for `-`" + `, such as
` + "`queue_limit: 500`" + `. Times are written ` + "`90s`, `5m` or `720h`" + `, or as seconds. A setting that
is not known is an error, which names the nearest that is: a flag, a key, or a variable
` + "`TAKT_…`" + ` that is neither a client's, nor a build's, nor what Kubernetes sets for a service
named takt. ` + "`takt serve --check`" + ` prints the effective ones, secrets masked. ` + "`takt storage`" + `
and ` + "`takt rekey`" + ` take the same.
`)
	def := defaultConfig("")
	group := ""
	for _, s := range settings(&def) {
		if s.group != group {
			group = s.group
			fmt.Fprintf(&out, "\n## %s\n\n| flag | environment | default | meaning |\n|---|---|---|---|\n", group)
		}
		value := s.otherwise
		if v := s.get(); v != "" {
			value = "`" + v + "`"
		}
		meaning := strings.ReplaceAll(s.usage, "|", `\|`)
		fmt.Fprintf(&out, "| `--%s` | `%s` | %s | %s |\n", s.name, strings.Join(s.env(), "`, `"), value, meaning)
	}
	out.WriteString(`
## Settings of clients

Clients and ` + "`takt worker`" + ` read ` + "`TAKT_URL` (default `" + defaultURL + "`), `TAKT_API_KEY`" + ` or
` + "`TAKT_API_KEY_FILE`, `TAKT_CA_FILE`" + ` (PEM, whom to trust about an https controller) and, for
` + "`takt tree`, `heijunka`, `restart`, `audit`, `repair`, `throttle`, `top`, `doctor` and `debug`, `TAKT_ADMIN_KEY`. `takt deploy`" + ` reads
` + "`TAKT_GITHUB_TOKEN`" + `. Their flags are in [cli.md](cli.md).
`)
	generated(t, "settings.md", out.String())
}

func TestDocsOfCommandsAreCurrent(t *testing.T) {
	t.Parallel()
	root := newRootIn(environment(env()))
	var out strings.Builder
	out.WriteString("# Commands\n\nWritten by `make docs` from the commands themselves; a test keeps it current.\n`takt help COMMAND` shows the same.\n\n" + root.Long + "\n")
	clients := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(remote).addFlags(clients)
	fmt.Fprintf(&out, "\n## Flags of every client command\n\nThese are not repeated below.\n\n```\n%s```\n", clients.FlagUsages())
	describeCommands(&out, root)
	generated(t, "cli.md", out.String())
}

func describeCommands(out *strings.Builder, parent *cobra.Command) {
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
		describeCommands(out, cmd)
	}
}

// describeFlags leaves out the settings of takt serve, which have a page, and the
// flags that all clients have.
func describeFlags(out *strings.Builder, cmd *cobra.Command) {
	own, common := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	serves := cmd.Flags().Lookup("data-dir") != nil
	if serves {
		addFlags(common)
	} else if cmd.Flags().Lookup("ca-file") != nil {
		new(remote).addFlags(common)
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
