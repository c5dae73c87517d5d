package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

type submitOptions struct {
	platform string
	certs    string
	wait     bool
	follow   bool
	download string
}

func newSubmitCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var o submitOptions
	cmd := &cobra.Command{
		Use:   "submit --platform ios|android SOURCE",
		Short: "Submit a build",
		Long: `Submit a build. SOURCE is a zip archive, or a directory, which is packed:
everything in it except .git.

Prints the build's id. The build's access token is kept in the state directory,
so that status, logs and download of this build work without the API key.`,
		Args: arguments(cobra.ExactArgs(1)),
	}
	f := cmd.Flags()
	f.StringVarP(&o.platform, "platform", "p", "", "ios or android")
	f.StringVar(&o.certs, "certs", "", "zip archive of certificates")
	f.BoolVarP(&o.wait, "wait", "w", false, "wait for the build's end; exit code 6 if it failed")
	f.BoolVarP(&o.follow, "follow", "f", false, "show the log while waiting (implies --wait)")
	f.StringVarP(&o.download, "download", "o", "", "write the result to this file (implies --wait)")
	_ = cmd.RegisterFlagCompletionFunc("platform", cobra.FixedCompletions([]string{"ios", "android"}, cobra.ShellCompDirectiveNoFileComp))
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		return submitBuild(ctx, s, o, args[0])
	})
}

func submitBuild(ctx context.Context, s *session, o submitOptions, path string) error {
	if !store.Platform(o.platform).Valid() {
		return cli.Usage("--platform: %q is not ios or android", o.platform)
	}
	in := client.Submit{Platform: store.Platform(o.platform)}
	source, remove, err := openSource(ctx, s, path)
	if err != nil {
		return err
	}
	defer remove()
	in.Source = source
	if o.certs != "" {
		certs, err := client.File(o.certs)
		if err != nil {
			return usageError(err)
		}
		in.Certs = &certs
	}
	build, err := send(ctx, s, in)
	if err != nil {
		return err
	}
	if !o.wait && !o.follow && o.download == "" {
		return nil
	}
	auth := client.BuildAuth{Token: build.AccessToken}
	w := waiter{session: s, id: build.ID, auth: auth, follow: o.follow}
	status, err := w.wait(ctx)
	if err != nil {
		return err
	}
	if err := showStatus(s, status); err != nil {
		return err
	}
	if err := verdict(status); err != nil || o.download == "" {
		return err
	}
	return downloadResult(ctx, s, build.ID, auth, o.download)
}

// openSource opens an archive, or packs a directory into one that remove
// removes.
func openSource(ctx context.Context, s *session, path string) (source client.Content, remove func(), err error) {
	remove = func() {}
	info, err := os.Stat(path)
	if err != nil {
		return source, remove, usageError(err)
	}
	if info.IsDir() {
		s.Note("packing %s", path)
		if path, err = cli.PackToFile(ctx, path); err != nil {
			return source, remove, err
		}
		packed := path
		remove = func() { _ = os.Remove(packed) }
	}
	source, err = client.File(path)
	if err != nil {
		remove()
		return source, func() {}, usageError(err)
	}
	return source, remove, nil
}

// send submits once: a repeat after a lost reply might queue the build twice.
func send(ctx context.Context, s *session, in client.Submit) (api.Submitted, error) {
	bar := cli.NewBar(s.Err, "uploading", s.JSON)
	in.Progress = bar.Progress()
	build, err := s.client.Submit(ctx, in)
	bar.Done()
	if err != nil {
		return build, err
	}
	if err := s.tokens.Keep(s.client.BaseURL(), build.ID, build.AccessToken, time.Now()); err != nil {
		s.Note("takt: the build's access token could not be kept: %v", err)
	}
	shown := build
	shown.AccessToken = "" // a secret, kept in the state directory
	return build, s.Result(struct {
		api.Submitted
		AccessToken string `json:"access_token,omitempty"`
	}{Submitted: shown}, func(w io.Writer) { fmt.Fprintln(w, build.ID) })
}
