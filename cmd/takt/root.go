package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/store"
)

// newRoot returns the takt command with everything below it.
func newRoot() *cobra.Command { return newRootIn(os.LookupEnv) }

// environment looks up a variable as os.LookupEnv does.
type environment func(name string) (value string, set bool)

func (e environment) get(name string) string {
	value, _ := e(name)
	return value
}

// newRootIn is newRoot with another environment for the client commands.
func newRootIn(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "takt",
		Short: "Hand builds to a fleet of workers",
		Long: `takt queues builds and hands them to your own build machines, without losing any.

Exit codes: 0 done, 1 failure, 2 usage, 3 not found, 4 refused, 5 controller
not available, 6 the build failed, 7 the worker can't run builds,
130 interrupted.`,
		Example: `  takt serve                                  # a controller on this machine
  takt worker --exec ./build.sh               # a worker that builds with a script
  takt submit --platform ios --follow ./app   # a build, and its log until it ends`,
	}
	root.SetFlagErrorFunc(unknownFlag)
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Builds", []*cobra.Command{
			newSubmitCommand(env), newListCommand(env), newStatusCommand(env), newWhyCommand(env), newExplainCommand(env), newLogsCommand(env), newDownloadCommand(env),
			newCancelCommand(env), newRetryCommand(env), newPriorityCommand(env), newRequeueCommand(env),
		}},
		{"Fleet", []*cobra.Command{newWorkerCommand(env), newWorkersCommand(env), newTopCommand(env)}},
		{"Operate", []*cobra.Command{
			newServeCommand(), newReadyCommand(env), newDoctorCommand(env), newTreeCommand(env), newRestartCommand(env), newHeijunkaCommand(env), newTimeoutsCommand(env), newAuditCommand(env), newKeysCommand(env), newNoticesCommand(env),
			newRepairCommand(env), newStorageCommand(), newBackupCommand(), newRestoreCommand(), newDatabaseCommand(), newRekeyCommand(), newDebugCommand(env), newVersionCommand(),
		}},
		{"Services", []*cobra.Command{newThrottleCommand(env), newDeployCommand(env), newDeploymentCommand(env), newDeploymentsCommand(env)}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	old := newHeijunkaCommand(env) // its name until 0.1.0
	old.Use, old.Hidden = "load", true
	root.AddCommand(old)
	completeNames(root, env)
	return root
}

// run executes takt and returns its exit code.
func run(ctx context.Context, args []string) int {
	env := environment(os.LookupEnv)
	zerolog.DurationFieldFormat = zerolog.DurationFormatString // "4.2s" tells its unit
	cli.NoColours(env.get("NO_COLOR") != "" || env.get("TERM") == "dumb")
	return cli.Execute(ctx, newRoot(), args, os.Stdout, os.Stderr) //nolint:contextcheck // commands take it from cobra
}

// complete gives the shell the values of a flag for completion.
func complete(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

// oneOf has a flag take only these values, which the shell completes.
func oneOf(cmd *cobra.Command, flag string, values ...string) {
	complete(cmd, flag, values...)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if v, _ := cmd.Flags().GetString(flag); v != "" && !slices.Contains(values, v) {
			return cli.Usage("--%s: %q is not one of %s", flag, v, strings.Join(values, ", "))
		}
		return nil
	}
}

// release and commit are set with -X by the linker (see the Makefile).
var release, commit string //nolint:gochecknoglobals // only the linker writes them

// version returns the release, or what the go command recorded of a build without one.
func version() string {
	info, ok := debug.ReadBuildInfo()
	switch {
	case release != "":
		return release
	case ok && info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	return "devel"
}

// revision returns the commit that this program was built from, or "" if it is not known.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if commit != "" || !ok {
		return commit
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of takt, and the commit it was built from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cli.Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: asJSON}
			return out.Result(struct {
				Version string `json:"version"`
				Commit  string `json:"commit"`
				Go      string `json:"go"`
				System  string `json:"system"`
			}{version(), revision(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}, func(w io.Writer) {
				fmt.Fprintf(w, "takt %s (commit %s, %s, %s/%s)\n", version(), cmp.Or(revision(), "unknown"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// newLogger returns a logger for a spec such as "info", "debug,console" or "warn,json".
// also get each line as JSON.
func newLogger(w io.Writer, spec string, also ...io.Writer) (zerolog.Logger, error) {
	levelName, format, _ := strings.Cut(spec, ",")
	level, err := zerolog.ParseLevel(levelName)
	if err != nil || level == zerolog.NoLevel {
		return zerolog.Nop(), fmt.Errorf("unknown level %q", levelName)
	}
	switch format {
	case "", "json":
		w = cli.JSONLog{Writer: w}
	case "console":
		text := func(v any) string {
			if raw, ok := v.([]byte); ok { // what is neither text nor number comes as JSON
				v = string(raw)
			}
			return store.Line(fmt.Sprint(v))
		}
		w = zerolog.ConsoleWriter{
			Out: w, TimeFormat: time.TimeOnly, NoColor: !cli.Colour(w),
			FormatMessage: func(v any) string {
				if v == nil {
					return ""
				}
				return text(v)
			},
			FormatFieldValue: text, FormatErrFieldValue: text,
		}
	default:
		return zerolog.Nop(), fmt.Errorf("unknown format %q: json or console", format)
	}
	for _, other := range also {
		w = zerolog.MultiLevelWriter(w, cli.JSONLog{Writer: other})
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
}
