package builds

import (
	"cmp"
	"context"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/pack"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// submitOptions are the flags of takt submit.
type submitOptions struct {
	client.Submit
	certs        string
	wait, follow bool
	download     string
	labels       []string
	github       string
	source       sourceOptions
	inputs       inputFlags
}

// Submit returns takt submit.
func Submit(env cli.Environment) *cobra.Command {
	var o submitOptions
	cmd := cli.Command(env, &cobra.Command{
		Use: "submit --platform PLATFORM SOURCE", Short: "Submit a build", Args: cobra.ExactArgs(1),
		Long: `Submit a build. SOURCE is a zip archive, or a directory, of which takt packs
what git would: in a git repository the files that git tracks or would add, as they
are now; elsewhere those that no .gitignore names. Lines of a .taktignore in SOURCE
leave out more, or bring files back (!ios/Pods/). --dry-run lists the files and sends
nothing, --all packs everything except .git.

Commit, branch and remote, and whether files were changed since the commit, go along:
as git says, or the variables of a CI service.

Prints the build's id. The build's token is kept in the state directory, so status,
logs and download of this build work without the API key.

--require and --prefer are conditions on the labels of workers (takt worker --label),
separated by commas. All of them must be met:

  xcode            the worker has this label; !xcode: it does not
  xcode>=16        also = != < <= >; versions are compared as versions
  pool in (a,b)    the label has one of these values

A build waits until a worker that meets --require takes it. If a worker that meets
--prefer is waiting for work it gets the build, otherwise any other worker does.`,
	}, func(ctx context.Context, s *cli.Session, args []string) error {
		return submitBuild(ctx, env, s, o, args[0])
	})
	f := cmd.Flags()
	f.StringVarP((*string)(&o.Platform), "platform", "p", "", "ios, android, or another platform that the controller accepts")
	f.StringVar(&o.certs, "certs", "", "zip archive of certificates")
	f.BoolVarP(&o.wait, "wait", "w", false, "wait for the build's end; exit code 6 if it failed")
	f.BoolVarP(&o.follow, "follow", "f", false, "show the log while waiting (implies --wait)")
	f.StringVarP(&o.download, "download", "o", "", "write the result to this file (implies --wait)")
	f.StringArrayVarP(&o.labels, "label", "l", nil, "name=value; may be repeated; builds with the same cache=… prefer the same worker")
	f.StringVar(&o.github, "github", "", "OWNER/REPO@SHA: the commit whose status shows the build (sets the label github; docs/notices.md)")
	f.StringVar(&o.Require, "require", "", "conditions that the worker's labels must meet, such as 'xcode>=16, !gpu'")
	f.StringVar(&o.Prefer, "prefer", "", "conditions that the worker's labels should meet")
	o.inputs.add(f)
	f.IntVar(&o.Priority, "priority", 0, "-10 to 10; higher is built first")
	o.source.addFlags(f)
	f.StringVar(&o.IdempotencyKey, "idempotency-key", "", "submits with the same key and content within 24 hours make only one build (default: a random key)")
	return cmd
}

func submitBuild(ctx context.Context, env cli.Environment, s *cli.Session, o submitOptions, path string) error {
	if o.Platform == "" && !o.source.dryRun {
		return cli.Usage("--platform is needed, such as ios or android")
	}
	if o.Platform != "" && !o.Platform.Valid() {
		return cli.Usage("--platform: %q is not a platform, such as ios or android", o.Platform)
	}
	if o.Priority < store.MinPriority || o.Priority > store.MaxPriority {
		return cli.Usage("--priority: %d is not between %d and %d", o.Priority, store.MinPriority, store.MaxPriority)
	}
	o.IdempotencyKey = cmp.Or(o.IdempotencyKey, client.NewIdempotencyKey())
	for name, text := range map[string]string{"--require": o.Require, "--prefer": o.Prefer} {
		if _, err := store.ParseRequire(name, text); err != nil {
			return cli.Usage("%s", cli.Message(err))
		}
	}
	var err error
	if o.Labels, err = cli.ReadLabels(o.labels); err != nil {
		return err
	}
	if o.github != "" {
		if _, _, ok := store.ParseCommit(o.github); !ok {
			return cli.Usage("--github: %q is not OWNER/REPO@SHA with the whole SHA", o.github)
		}
		o.Labels[store.GitHubLabel] = o.github
	}
	if o.Inputs, err = o.inputs.read(s, env); err != nil {
		return err
	}
	src, err := findSource(ctx, env, o.source, path)
	if err != nil {
		return err
	}
	src.warn(s)
	if o.source.dryRun {
		return src.show(ctx, s)
	}
	if err := src.open(ctx, s); err != nil {
		return err
	}
	defer src.remove()
	src.noteLeftOut(s)
	o.Source, o.Inputs.Facts = src.content, src.facts
	if o.certs != "" {
		certs, err := client.File(o.certs)
		if err != nil {
			return cli.AsUsage(err)
		}
		o.Certs = &certs
	}
	build, err := send(ctx, s, o.Submit)
	if err != nil {
		return err
	}
	s.Note("%s, %s of source submitted: %s/builds/%s", pack.CountText(src.tree.Files()), humanize.IBytes(uint64(o.Source.Size)), s.Client.BaseURL(), build.ID)
	w := waiter{Session: s, id: build.ID, auth: client.BuildAuth{Token: build.AccessToken}, follow: o.follow, saves: o.download != ""}
	if !o.wait && !o.follow && o.download == "" {
		if why, err := s.Client.Why(ctx, w.id, w.auth); err == nil && why.Unmatched {
			s.Note("%s: %s. %s", w.id, store.Pending, why.Reason)
		}
		return nil
	}
	if err := w.end(ctx); err != nil || o.download == "" {
		return err
	}
	return downloadResult(ctx, &w, o.download)
}

// submitTries is the maximum number of attempts to submit a build.
const submitTries = 5

// send submits a build. It retries after a lost reply, because the idempotency key
// prevents a second build. It does not wait for a full queue.
func send(ctx context.Context, s *cli.Session, in client.Submit) (api.Submitted, error) {
	bar := cli.NewBar(s.Err, "uploading", s.JSON)
	in.Progress = bar.Progress()
	s.Retry.Attempts, s.Retry.Patience = submitTries, 0
	s.Retry.Temporary = func(err error) bool {
		return cli.Heals(err) && !slices.Contains([]store.Code{store.QueueFull, store.KeyQueueFull, store.KeyClassesFull}, store.CodeOf(err))
	}
	build, err := cli.Again(ctx, s, func(ctx context.Context) (api.Submitted, error) { return s.Client.Submit(ctx, in) })
	bar.Done()
	if err != nil {
		return build, err
	}
	if flags := ignored(in.Inputs, build.Inputs); len(flags) > 0 {
		return build, refuse(ctx, s, build.ID, flags)
	}
	return build, created(s, build.ID, build.AccessToken, struct {
		api.Submitted
		AccessToken string `json:"access_token,omitempty"` // a secret, not shown
	}{Submitted: build})
}
