package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
)

func newDeployCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var (
		body      api.DeploymentRequest
		tokenFile string
		watch     bool
	)
	cmd := &cobra.Command{
		Use:   "deploy --from ORG --to ORG",
		Short: "Copy an organisation's repositories into another",
		Long: `Copy every repository of one GitHub organisation into another: branches, tags,
large files, description, default branch and visibility.

The forge credential comes from TAKT_GITHUB_TOKEN or --token-file; without one
the controller's own is used. It is sealed, and wiped when the deployment ends.`,
		Example: `  takt deploy --from my-org --to my-mirror --dry-run
  takt deploy --from my-org --to my-mirror --include 'api-*' --watch`,
		Args: cli.Arguments(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.StringVar(&body.SourceOrg, "from", "", "organisation to copy")
	f.StringVar(&body.TargetOrg, "to", "", "organisation to copy into")
	f.StringSliceVar(&body.Include, "include", nil, "only repositories that match one of these patterns, such as 'api-*'")
	f.StringSliceVar(&body.Exclude, "exclude", nil, "no repositories that match one of these patterns")
	f.StringVar(&body.OnlyVisibility, "only-visibility", "", "only public, private or internal repositories")
	f.StringVar(&body.Archived, "archived", "", "archived repositories: include, exclude or only (default include)")
	f.StringVar(&body.Forks, "forks", "", "forks: include, exclude or only (default include)")
	f.StringVar(&body.NameTemplate, "name-template", "", "names of the copies, of {name} and {owner} (default {name})")
	f.StringVar(&body.Visibility, "visibility", "", "of the copies: keep, public, private or internal (default keep)")
	f.IntVar(&body.Concurrency, "concurrency", 0, "repositories at once, 1 to 32 (default: the controller's)")
	f.BoolVar(&body.DryRun, "dry-run", false, "show what would be done, and do nothing")
	f.BoolVarP(&watch, "watch", "w", false, "follow it to its end; failures are an exit code then")
	f.StringVar(&tokenFile, "token-file", "", "file that holds the forge credential")
	return r.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		if body.SourceOrg == "" || body.TargetOrg == "" {
			return cli.AsUsage(fmt.Errorf("--from and --to are required"))
		}
		var err error
		if body.Token, err = forgeToken(env, tokenFile); err != nil {
			return cli.AsUsage(err)
		}
		d, err := s.client.Deploy(ctx, body)
		if err != nil {
			return err
		}
		if !watch && !body.DryRun {
			return s.showDeployment(d, false)
		}
		s.Note("deployment %s", d.ID)
		return s.watchDeployment(ctx, d.ID, true)
	})
}

// forgeToken finds the forge credential; "" if there is none.
func forgeToken(env environment, file string) (string, error) {
	if file == "" {
		return env.get("TAKT_GITHUB_TOKEN"), nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("forge credential: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" {
		return "", fmt.Errorf("forge credential: %s is empty", file)
	}
	return token, nil
}
