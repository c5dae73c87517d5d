package operating

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
)

// Timeouts returns takt timeouts.
func Timeouts(env cli.Environment) *cobra.Command {
	var check, build, worker time.Duration
	cmd := &cobra.Command{
		Use:   "timeouts",
		Short: "Show and set the time-outs of builds and workers",
		Long: `Show after how much silence a build's attempt is lost or a worker is offline, and how
often that is checked. --build, --worker and --check change it on all controllers,
until it is changed again. Needs the admin key in TAKT_ADMIN_KEY.`,
		Example: "  takt timeouts --worker 10m --reason 'the minis sleep'",
	}
	cli.DurationFlag(cmd.Flags(), &build, "build", 0, "silence after which a build is taken from its worker")
	cli.DurationFlag(cmd.Flags(), &worker, "worker", 0, "silence after which a worker is offline")
	cli.DurationFlag(cmd.Flags(), &check, "check", 0, "time between two checks")
	reason := cli.ReasonFlag(cmd)
	return cli.Ask(env, cmd, func(ctx context.Context, c *client.Client, _ []string) (api.HeartbeatSettings, error) {
		set := api.HeartbeatSettings{Reason: *reason}
		for d, to := range map[*time.Duration]**float64{&check: &set.CheckInterval, &build: &set.BuildTimeout, &worker: &set.WorkerTimeout} {
			if seconds := d.Seconds(); seconds != 0 {
				*to = &seconds
			}
		}
		if set == (api.HeartbeatSettings{Reason: *reason}) {
			return client.Call(ctx, c, api.ShowTimeouts, api.None{})
		}
		return client.Call(ctx, c, api.ChangeTimeouts, set)
	}, func(w io.Writer, now api.HeartbeatSettings) {
		rows := [][]string{{"TIMEOUT", "VALUE"}}
		for _, t := range []struct {
			name    string
			seconds *float64
		}{{"build", now.BuildTimeout}, {"worker", now.WorkerTimeout}, {"check", now.CheckInterval}} {
			if t.seconds != nil {
				rows = append(rows, []string{t.name, cli.DurationText(time.Duration(*t.seconds * float64(time.Second)))})
			}
		}
		cli.Table(w, rows)
	})
}
