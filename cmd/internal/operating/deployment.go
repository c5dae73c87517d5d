package operating

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
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
		Use: "deploy --from ORG --to ORG", Short: "Copy an organisation's repositories into another",
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
			return s.Result(d, func(w io.Writer) { printDeployment(w, d, false) })
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
	heading := []string{"DEPLOYMENT", "STATE", "FROM", "TO", "CREATED", "REPOS", "DONE", "FAILED", "SKIPPED"}
	return cli.Row(env, &cobra.Command{Use: "deployments", Short: "List deployments, newest first"}, cli.Repeat((*client.Client).Deployments),
		cli.Rows(func(all []api.Deployment) []api.Deployment { return all }, heading, func(d api.Deployment) []string {
			return []string{
				d.ID, d.State, d.Request.SourceOrg, d.Request.TargetOrg, cli.Time(d.CreatedAt.Time()),
				strconv.Itoa(d.Counts.Total), strconv.Itoa(d.Counts.Done), strconv.Itoa(d.Counts.Failed), strconv.Itoa(d.Counts.Skipped),
			}
		}), func(limit *int, f *cli.Flags) {
			f.Limit(limit, 50)
		})
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
		return cli.Show(s, d, err, func(w io.Writer, d api.Deployment) { printDeployment(w, d, all) })
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow it until it ends")
	cmd.Flags().BoolVar(&all, "all", false, "also list repositories that were copied")
	shown := cli.Text(func(w io.Writer, d api.Deployment) { printDeployment(w, d, false) })
	cmd.AddCommand(
		cli.Row(env, &cobra.Command{Use: "cancel ID", Short: "End a deployment: what is not copied yet is skipped"}, cli.Order(api.CancelDeployment), shown, deploymentOrder),
		cli.Row(env, &cobra.Command{Use: "pause ID", Short: "Stop the work on a deployment until it is resumed"}, cli.Order(api.PauseDeployment), shown, deploymentOrder),
		cli.Row(env, &cobra.Command{Use: "resume ID", Short: "Let a paused deployment go on"}, cli.Order(api.ResumeDeployment), shown, deploymentOrder),
		cli.Row(env, &cobra.Command{
			Use: "retry ID", Short: "Retry what has failed",
			Long: `Retry what has failed, or was skipped because the deployment was cancelled. A
deployment that has ended needs the forge credential again, from TAKT_GITHUB_TOKEN
or --token-file.`,
		}, retryDeployment, cli.Text(func(w io.Writer, done api.DeploymentRetried) { fmt.Fprintf(w, "%d to be tried again\n", done.Retried) }),
			func(in *api.RetryDeploymentIn, f *cli.Flags) {
				cli.Arg(f, &in.ID)
				f.StringVar(&in.Body.Repo, "repo", "", "only this repository")
				file := f.String("token-file", "", "file that holds the forge credential")
				f.Check(func() (err error) {
					in.Body.Token, err = forgeToken(env, *file)
					return err
				})
				f.Reason(&in.Body.Reason)
			}),
	)
	return cmd
}

func deploymentOrder(in *api.DeploymentOrder, f *cli.Flags) {
	cli.Arg(f, &in.ID)
	f.Reason(&in.Body.Reason)
}

// retryDeployment is a call of its own because only the client knows which credential goes along.
func retryDeployment(ctx context.Context, s *cli.Session, in api.RetryDeploymentIn) (api.DeploymentRetried, error) {
	return s.Client.RetryDeployment(ctx, string(in.ID), in.Body)
}

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
		bar.Show(int64(d.Counts.Total-d.Counts.Left()), int64(d.Counts.Total), deploymentLine(d))
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
	if err := s.Result(d, func(w io.Writer) { printDeployment(w, d, all) }); err != nil {
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

// deploymentLine describes the progress of a deployment in one line.
func deploymentLine(d api.Deployment) string {
	c := d.Counts
	parts := []string{d.State}
	for _, part := range []struct {
		n    int
		word string
	}{{c.Creating, "creating"}, {c.Pushing, "pushing"}, {c.Verifying, "verifying"}, {c.Failed, "failed"}, {c.Skipped, "skipped"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.word))
		}
	}
	if d.ETASeconds != nil && c.Left() > 0 {
		parts = append(parts, "about "+shortTime(*d.ETASeconds)+" left")
	}
	return strings.Join(parts, ", ")
}

func shortTime(seconds float64) string {
	return time.Duration(max(1, seconds) * float64(time.Second)).Round(time.Second).String()
}

// printDeployment shows a deployment's figures and a table of its repositories. The table
// lists those that are in progress or did not go well, or all of them if all is set.
func printDeployment(w io.Writer, d api.Deployment, all bool) {
	what := "deployment " + d.ID
	if d.Request.DryRun {
		what = "dry run " + d.ID
	}
	fmt.Fprintf(w, "%s  %s → %s  %s", what, d.Request.SourceOrg, d.Request.TargetOrg, deploymentLine(d))
	if d.FinishedAt != nil {
		fmt.Fprintf(w, "  in %s", d.FinishedAt.Time().Sub(d.CreatedAt.Time()).Round(100*time.Millisecond))
	}
	fmt.Fprintln(w)
	if d.Error != nil {
		fmt.Fprintln(w, store.Lines(*d.Error))
	}
	if p := d.Plan; p != nil {
		fmt.Fprintf(w, "would create %d, skip %d; %d in conflict; left out by filters %d; %d calls, about %s\n",
			p.Create, p.Skip, p.Conflict, d.Filtered, p.Calls, shortTime(p.Seconds))
	} else if d.Counts.Total > 0 {
		fmt.Fprintf(w, "%d repositories: %d done, %d failed, %d skipped, %d left; %d branches and tags\n",
			d.Counts.Total, d.Counts.Done, d.Counts.Failed, d.Counts.Skipped, d.Counts.Left(), d.Refs)
	}
	rows := [][]string{{"REPOSITORY", "COPY", "STEP", "REFS", "TOOK", "NOTE"}}
	hidden := 0
	for _, r := range d.Repos {
		quiet := (r.Step == "done" || r.Step == "planned") && r.Error == nil && r.Warning == nil
		if quiet && !all {
			hidden++
			continue
		}
		row := repoRow(r)
		if d.Request.DryRun {
			row[2] = cmp.Or(map[string]string{"planned": "create", "skipped": "skip", "failed": "conflict"}[r.Step], r.Step)
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		fmt.Fprintln(w)
		cli.Table(w, rows)
	}
	if hidden > 0 && len(rows) > 1 {
		fmt.Fprintf(w, "and %d without anything to tell (--all)\n", hidden)
	}
}

func repoRow(r api.DeploymentRepo) []string {
	took := "-"
	if r.DurationMS != nil {
		took = (time.Duration(*r.DurationMS) * time.Millisecond).Round(time.Millisecond).String()
	}
	note := cli.Or(r.Error, cli.Or(r.Warning, ""))
	if r.Attempts > 1 {
		note = strings.TrimSpace(note + " (" + strconv.Itoa(r.Attempts) + " attempts)")
	}
	return []string{store.Lines(r.Name), store.Lines(r.Target), r.Step, strconv.Itoa(r.Refs), took, store.Lines(strings.ReplaceAll(note, "\n", " "))}
}
