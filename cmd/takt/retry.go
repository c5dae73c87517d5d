package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
)

func newRetryCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var wait, follow bool
	cmd := &cobra.Command{
		Use:   "retry ID",
		Short: "Submit a build again, with the files that the controller has",
		Long: `Submit a build again, whatever became of it, with the files that the controller
still has. Prints the new build's id; its access token is kept in the state
directory, as submit does.`,
		Args: cli.Arguments(cobra.ExactArgs(1)),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait for the build's end; exit code 6 if it failed")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show the log while waiting (implies --wait)")
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		auth, err := s.auth(args[0])
		if err != nil {
			return err
		}
		// Once: a repeat after a lost reply might queue the build twice.
		build, err := s.client.Retry(ctx, args[0], auth)
		if err != nil {
			return err
		}
		if err := s.retried(build); err != nil || !wait && !follow {
			return err
		}
		w := waiter{session: s, id: build.ID, auth: client.BuildAuth{Token: build.AccessToken}, follow: follow}
		status, err := w.wait(ctx)
		if err != nil {
			return err
		}
		if err := showStatus(s, status); err != nil {
			return err
		}
		return verdict(status)
	})
}

// retried keeps the new build's token, which is a secret, and shows the rest.
func (s *session) retried(build api.Retried) error {
	if err := s.tokens.Keep(s.client.BaseURL(), build.ID, build.AccessToken, time.Now()); err != nil {
		s.Note("takt: the build's access token could not be kept: %v", err)
	}
	build.AccessToken = ""
	return s.Result(struct {
		api.Retried
		AccessToken string `json:"access_token,omitempty"`
	}{Retried: build}, func(w io.Writer) { fmt.Fprintln(w, build.ID) })
}
