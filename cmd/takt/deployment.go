package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
)

func newDeploymentsCommand(env environment) *cobra.Command {
	r := remote{env: env}
	limit := 0
	cmd := &cobra.Command{
		Use:   "deployments",
		Short: "List deployments, newest first",
		Args:  cli.Arguments(cobra.NoArgs),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "at most so many")
	return r.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		list, err := again(ctx, s, func(ctx context.Context) ([]api.Deployment, error) { return s.client.Deployments(ctx, limit) })
		if err != nil {
			return err
		}
		if list == nil {
			list = []api.Deployment{}
		}
		return s.Result(list, func(w io.Writer) {
			rows := [][]string{{"DEPLOYMENT", "STATE", "FROM", "TO", "CREATED", "REPOS", "DONE", "FAILED", "SKIPPED"}}
			for _, d := range list {
				rows = append(rows, []string{
					d.ID, d.State, d.Request.SourceOrg, d.Request.TargetOrg, d.CreatedAt.Time().Format(time.RFC3339),
					strconv.Itoa(d.Counts.Total), strconv.Itoa(d.Counts.Done), strconv.Itoa(d.Counts.Failed), strconv.Itoa(d.Counts.Skipped),
				})
			}
			cli.Table(w, rows)
		})
	})
}

func newDeploymentCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var watch, all bool
	cmd := &cobra.Command{
		Use:   "deployment ID",
		Short: "Show a deployment; cancel, pause, resume or retry it",
		Args:  cli.Arguments(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow it to its end")
	cmd.Flags().BoolVar(&all, "all", false, "list what went well, too")
	for _, order := range []string{"cancel", "pause", "resume"} {
		cmd.AddCommand(newDeploymentOrder(env, order))
	}
	cmd.AddCommand(newDeploymentRetry(env))
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		if watch {
			return s.watchDeployment(ctx, args[0], all)
		}
		d, err := s.deployment(ctx, args[0], true)
		if err != nil {
			return err
		}
		return s.showDeployment(d, all)
	})
}

func newDeploymentOrder(env environment, order string) *cobra.Command {
	r := remote{env: env}
	short := map[string]string{
		"cancel": "End a deployment: what is not copied yet is skipped",
		"pause":  "Stop the work on a deployment until it is resumed",
		"resume": "Let a paused deployment go on",
	}
	cmd := &cobra.Command{Use: order + " ID", Short: short[order], Args: cli.Arguments(cobra.ExactArgs(1))}
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		d, err := s.client.SteerDeployment(ctx, args[0], order)
		if err != nil {
			return err
		}
		return s.showDeployment(d, false)
	})
}

func newDeploymentRetry(env environment) *cobra.Command {
	r := remote{env: env}
	var repo, tokenFile string
	cmd := &cobra.Command{
		Use:   "retry ID",
		Short: "Try again what has failed",
		Long: `Try again what has failed, or was skipped because the deployment was cancelled.

A deployment that has ended needs the forge credential anew, from
TAKT_GITHUB_TOKEN or --token-file.`,
		Args: cli.Arguments(cobra.ExactArgs(1)),
	}
	cmd.Flags().StringVar(&repo, "repo", "", "only this repository")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file that holds the forge credential")
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		token, err := forgeToken(env, tokenFile)
		if err != nil {
			return cli.AsUsage(err)
		}
		n, err := s.client.RetryDeployment(ctx, args[0], api.DeploymentRetry{Repo: repo, Token: token})
		if err != nil {
			return err
		}
		return s.Result(api.DeploymentRetried{Retried: n}, func(w io.Writer) { fmt.Fprintf(w, "%d to be tried again\n", n) })
	})
}

func (s *session) deployment(ctx context.Context, id string, repos bool) (api.Deployment, error) {
	return again(ctx, s, func(ctx context.Context) (api.Deployment, error) { return s.client.Deployment(ctx, id, repos) })
}

// deploymentTick is how often a deployment is looked at that is followed.
const deploymentTick = 500 * time.Millisecond

// watchDeployment follows a deployment to its end, with a bar on a terminal, and
// shows what became of it. Failures are an error.
func (s *session) watchDeployment(ctx context.Context, id string, all bool) error {
	bar := cli.NewCountBar(s.Err, "planning", s.JSON)
	defer bar.Done()
	tick := time.NewTicker(deploymentTick)
	defer tick.Stop()
	for {
		d, err := s.deployment(ctx, id, false)
		if err != nil {
			return err
		}
		bar.Show(int64(d.Counts.Total-d.Counts.Left()), int64(d.Counts.Total), cli.DeploymentLine(d))
		if d.Ended() {
			bar.Done()
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.Note("the deployment goes on: takt deployment %s --watch", id)
			return context.Cause(ctx)
		}
	}
	d, err := s.deployment(ctx, id, true)
	if err != nil {
		return err
	}
	if err := s.showDeployment(d, all); err != nil {
		return err
	}
	switch {
	case d.State == "failed":
		return fmt.Errorf("deployment %s failed: %s", id, cli.Or(d.Error, "no reason given"))
	case d.State == "cancelled":
		return fmt.Errorf("deployment %s was cancelled", id)
	case d.Counts.Failed > 0 && !d.Request.DryRun:
		return fmt.Errorf("%d of %d repositories failed; takt deployment retry %s tries them again", d.Counts.Failed, d.Counts.Total, id)
	}
	return nil
}

func (s *session) showDeployment(d api.Deployment, all bool) error {
	return s.Result(d, func(w io.Writer) { cli.PrintDeployment(w, d, all) })
}
