package command

import (
	"cmp"
	"context"
	"os"
	"runtime"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"takt/cmd/internal/builds"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/doctor"
	"takt/cmd/internal/fleet"
	"takt/cmd/internal/operating"
	"takt/cmd/internal/serving"
	"takt/cmd/internal/settings"
	"takt/cmd/internal/upkeep"
)

// New returns the takt command with everything below it.
func New(env cli.Environment) *cobra.Command {
	root := &cobra.Command{
		Use: "takt", Short: "Hand builds to a fleet of workers",
		Long: `takt queues builds and hands them to your own build machines, without losing any.

Exit codes: 0 done, 1 failure, 2 usage, 3 not found, 4 refused, 5 controller
not available, 6 the build failed, 7 the worker can't run builds,
130 interrupted.`,
		Example: `  takt serve                                  # a controller on this machine
  takt worker --exec ./build.sh               # a worker that builds with a script
  takt submit --platform ios --follow ./app   # a build, and its log until it ends`,
	}
	root.SetFlagErrorFunc(settings.UnknownFlag)
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Builds", []*cobra.Command{
			builds.Submit(env), builds.List(env), builds.Status(env), builds.Why(env), builds.Explain(env), builds.Logs(env), builds.Download(env),
			builds.Cancel(env), builds.Retry(env), builds.Priority(env), builds.Requeue(env),
		}},
		{"Fleet", []*cobra.Command{fleet.Worker(env), fleet.Workers(env), fleet.Top(env)}},
		{"Operate", []*cobra.Command{
			serving.Command(), doctor.Ready(env), doctor.Command(env), operating.Tree(env), operating.Restart(env), operating.Start(env), operating.Heijunka(env), operating.Timeouts(env), operating.Attention(env), operating.Audit(env), operating.Keys(env), operating.Secrets(env), operating.Notices(env),
			operating.Repair(env), upkeep.Storage(), upkeep.Backup(), upkeep.Restore(), upkeep.Database(), upkeep.Rekey(), operating.Debug(env), newVersionCommand(),
		}},
		{"Services", []*cobra.Command{operating.Throttle(env), operating.Deploy(env), operating.Deployment(env), operating.Deployments(env)}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	old := operating.Heijunka(env) // its name until 0.1.0
	old.Use, old.Hidden = "load", true
	root.AddCommand(old)
	completeNames(root, env)
	return root
}

// Run executes takt and returns its exit code.
func Run(ctx context.Context, args []string) int {
	env := cli.Environment(os.LookupEnv)
	zerolog.DurationFieldFormat = zerolog.DurationFormatString // "4.2s" tells its unit
	cli.NoColours(env.Get("NO_COLOR") != "" || env.Get("TERM") == "dumb")
	return cli.Execute(ctx, New(env), args, os.Stdout, os.Stderr)
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Show the version of takt, and the commit it was built from", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cli.Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: asJSON}
			return out.Say(struct {
				Version string `json:"version"`
				Commit  string `json:"commit"`
				Go      string `json:"go"`
				System  string `json:"system"`
			}{cli.Version(), cli.Revision(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}, "takt %s (commit %s, %s, %s/%s)", cli.Version(), cmp.Or(cli.Revision(), "unknown"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}
