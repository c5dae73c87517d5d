package operating

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store/backoff"
)

// Deploy returns takt deploy.
func Deploy(env cli.Environment) *cobra.Command {
	var (
		body      api.DeploymentRequest
		tokenFile string
		watch     bool
	)
	cmd := cli.Command(env, &cobra.Command{
		Use:   "deploy --from ORG --to ORG",
		Short: "Copy an organisation's repositories into another",
		Long: `Copy every repository of one GitHub organisation into another: branches, tags,
large files, description, default branch and visibility.

The forge credential comes from TAKT_GITHUB_TOKEN or --token-file. Without one the
controller's own is used, which needs TAKT_ADMIN_KEY and the controller's
--deploy-allow. A credential is stored sealed and deleted when the deployment ends.`,
		Example: `  takt deploy --from my-org --to my-mirror --dry-run
  takt deploy --from my-org --to my-mirror --include 'api-*' --watch`,
	}, func(ctx context.Context, s *cli.Session, _ []string) error {
		if body.SourceOrg == "" || body.TargetOrg == "" {
			return cli.Usage("--from and --to are required")
		}
		var err error
		if body.Token, err = forgeToken(env, tokenFile); err != nil {
			return err
		}
		d, err := s.Client.Deploy(ctx, body)
		if err != nil {
			return err
		}
		if !watch && !body.DryRun {
			return s.Result(d, func(w io.Writer) { printDeployment(w, d) })
		}
		s.Note("deployment %s", d.ID)
		return watchDeployment(ctx, s, d.ID, true)
	})
	f := cmd.Flags()
	f.StringVar(&body.SourceOrg, "from", "", "organisation to copy")
	f.StringVar(&body.TargetOrg, "to", "", "organisation to copy into")
	f.StringSliceVar(&body.Include, "include", nil, "only repositories that match one of these patterns, such as 'api-*'")
	f.StringSliceVar(&body.Exclude, "exclude", nil, "skip repositories that match one of these patterns")
	f.StringVar(&body.OnlyVisibility, "only-visibility", "", "only public, private or internal repositories")
	f.StringVar(&body.Archived, "archived", "", "archived repositories: include, exclude or only (default include)")
	f.StringVar(&body.Forks, "forks", "", "forks: include, exclude or only (default include)")
	f.StringVar(&body.NameTemplate, "name-template", "", "template for the names of the copies, with {name} and {owner} (default {name})")
	f.StringVar(&body.Visibility, "visibility", "", "visibility of the copies: keep, public, private or internal (default keep)")
	f.BoolVar(&body.AllowPublish, "allow-publish", false, "allow copies that more people can see than their sources")
	f.IntVar(&body.Concurrency, "concurrency", 0, "repositories copied at once, 1 to 32 (default: the controller's)")
	f.BoolVar(&body.DryRun, "dry-run", false, "only show what would be done")
	f.BoolVarP(&watch, "watch", "w", false, "follow it until it ends; exit code 1 if something failed")
	f.StringVar(&tokenFile, "token-file", "", "file that holds the forge credential")
	return cmd
}

// forgeToken returns the forge credential, or "" if there is none.
func forgeToken(env cli.Environment, file string) (string, error) {
	if file == "" {
		return env.Get("TAKT_GITHUB_TOKEN"), nil
	}
	token, err := cli.ReadSecret("forge credential", file)
	return token, cli.AsUsage(err)
}

// Deployments returns takt deployments.
func Deployments(env cli.Environment) *cobra.Command {
	limit := 0
	cmd := cli.Ask(env, &cobra.Command{Use: "deployments", Short: "List deployments, newest first"},
		func(ctx context.Context, c *client.Client, _ []string) ([]api.Deployment, error) {
			return c.Deployments(ctx, limit)
		},
		func(w io.Writer, list []api.Deployment) {
			heading := []string{"DEPLOYMENT", "STATE", "FROM", "TO", "CREATED", "REPOS", "DONE", "FAILED", "SKIPPED"}
			cli.List(w, heading, list, func(d api.Deployment) []string {
				return []string{
					d.ID, d.State, d.Request.SourceOrg, d.Request.TargetOrg, cli.Time(d.CreatedAt.Time()),
					strconv.Itoa(d.Counts.Total), strconv.Itoa(d.Counts.Done), strconv.Itoa(d.Counts.Failed), strconv.Itoa(d.Counts.Skipped),
				}
			})
		})
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "maximum number of results; 0 for all")
	return cmd
}

// Deployment returns takt deployment.
func Deployment(env cli.Environment) *cobra.Command {
	var watch, all bool
	cmd := cli.Command(env, &cobra.Command{
		Use: "deployment ID", Short: "Show a deployment; cancel, pause, resume or retry it", Args: cobra.ExactArgs(1),
		Long: `Show a deployment. To cancel, pause, resume or retry one that uses the controller's own
credential, set TAKT_ADMIN_KEY.`,
	}, func(ctx context.Context, s *cli.Session, args []string) error {
		if watch {
			return watchDeployment(ctx, s, args[0], all)
		}
		d, err := findDeployment(ctx, s, args[0], true)
		return cli.Show(s, d, err, func(w io.Writer, d api.Deployment) { cli.PrintDeployment(w, d, all) })
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow it until it ends")
	cmd.Flags().BoolVar(&all, "all", false, "also list repositories that were copied")
	cmd.AddCommand(
		newDeploymentOrder(env, "cancel", "End a deployment: what is not copied yet is skipped", api.CancelDeployment),
		newDeploymentOrder(env, "pause", "Stop the work on a deployment until it is resumed", api.PauseDeployment),
		newDeploymentOrder(env, "resume", "Let a paused deployment go on", api.ResumeDeployment),
		newDeploymentRetry(env),
	)
	return cmd
}

func newDeploymentOrder(env cli.Environment, name, short string, e api.Endpoint[api.DeploymentOrder, api.Deployment]) *cobra.Command {
	cmd := &cobra.Command{Use: name + " ID", Short: short, Args: cobra.ExactArgs(1)}
	reason := cli.ReasonFlag(cmd)
	return cli.Order(env, cmd, cli.Calls(e, func(args []string) (api.DeploymentOrder, error) {
		return api.DeploymentOrder{ID: api.DeploymentID(args[0]), Body: api.Reason{Reason: *reason}}, nil
	}), printDeployment)
}

func newDeploymentRetry(env cli.Environment) *cobra.Command {
	var repo, tokenFile string
	var reason *string
	cmd := cli.Order(env, &cobra.Command{
		Use:   "retry ID",
		Short: "Retry what has failed",
		Long: `Retry what has failed, or was skipped because the deployment was cancelled. A
deployment that has ended needs the forge credential again, from TAKT_GITHUB_TOKEN
or --token-file.`,
		Args: cobra.ExactArgs(1),
	}, func(ctx context.Context, c *client.Client, args []string) (done api.DeploymentRetried, err error) {
		token, err := forgeToken(env, tokenFile)
		if err != nil {
			return done, err
		}
		return c.RetryDeployment(ctx, args[0], api.DeploymentRetry{Repo: repo, Token: token, Reason: *reason})
	}, func(w io.Writer, done api.DeploymentRetried) { fmt.Fprintf(w, "%d to be tried again\n", done.Retried) })
	reason = cli.ReasonFlag(cmd)
	cmd.Flags().StringVar(&repo, "repo", "", "only this repository")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file that holds the forge credential")
	return cmd
}

// printDeployment shows a deployment without the repositories that went well.
func printDeployment(w io.Writer, d api.Deployment) { cli.PrintDeployment(w, d, false) }

func findDeployment(ctx context.Context, s *cli.Session, id string, repos bool) (api.Deployment, error) {
	return cli.Again(ctx, s, func(ctx context.Context) (api.Deployment, error) { return s.Client.Deployment(ctx, id, repos) })
}

// deploymentTick is the time between two requests for the status of a followed
// deployment.
const deploymentTick = 500 * time.Millisecond

// watchDeployment follows a deployment to its end, with a bar on a terminal, and shows
// the outcome. It returns an error if repositories failed.
func watchDeployment(ctx context.Context, s *cli.Session, id string, all bool) error {
	bar := cli.NewCountBar(s.Err, "planning", s.JSON)
	defer bar.Done()
	for {
		d, err := findDeployment(ctx, s, id, false)
		if err != nil {
			return err
		}
		bar.Show(int64(d.Counts.Total-d.Counts.Left()), int64(d.Counts.Total), cli.DeploymentLine(d))
		if d.Ended() {
			break
		}
		if err := backoff.Pause(ctx, deploymentTick); err != nil {
			s.Note("the deployment goes on: takt deployment %s --watch", id)
			return err
		}
	}
	bar.Done()
	d, err := findDeployment(ctx, s, id, true)
	if err != nil {
		return err
	}
	if err := s.Result(d, func(w io.Writer) { cli.PrintDeployment(w, d, all) }); err != nil {
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
