package builds

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// Cancel returns takt cancel.
func Cancel(env cli.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel ID | --label NAME=VALUE", Short: "Cancel a build that has not ended, or all that have some labels",
		Long: `Cancel a build that has not ended, or with --label all builds that have these labels.
A key that only submits cancels those that it submitted. The reason is shown with the
build, too.`,
		Example: "  takt cancel --label pr=1234",
	}
	reason := cli.ReasonFlag(cmd)
	var all several
	all.flags(cmd, "", "pending", "assigned", "building")
	return cli.Command(env, cmd, func(ctx context.Context, s *cli.Session, args []string) error {
		if len(args) == 0 {
			return all.change(ctx, s, cmd, "Cancel", func(ctx context.Context, b api.SeveralBuilds) (api.SeveralChanged, error) {
				b.Reason = *reason
				return cli.Again(ctx, s, func(ctx context.Context) (api.SeveralChanged, error) {
					return s.Client.CancelAll(ctx, api.CancelBuildsIn{State: all.state, SeveralBuilds: b})
				})
			})
		}
		id, err := buildID(ctx, s, args[0])
		if err != nil {
			return err
		}
		// Cancel is sent once because a repeat would fail: the build has ended by then.
		reply, err := s.Client.Cancel(ctx, id, *reason)
		return cli.Show(s, reply, err, func(w io.Writer, c api.Cancelled) { fmt.Fprintf(w, "%s %s\n", id, c.Status) })
	})
}

// Requeue returns takt requeue.
func Requeue(env cli.Environment) *cobra.Command {
	return cli.Row(env, &cobra.Command{
		Use: "requeue ID --reason TEXT", Short: "Return a running build to the queue",
		Long: `Take an assigned or running build from its worker and return it to its old position
in the queue, for another worker. This uses up no attempt. A build that waits for its
retry after an exit code (takt submit --retry-on) waits no longer. Needs the admin key
in TAKT_ADMIN_KEY.`,
	}, func(ctx context.Context, s *cli.Session, in api.RequeueBuildIn) (b api.BuildItem, err error) {
		id, err := buildID(ctx, s, string(in.ID))
		if err != nil {
			return b, err
		}
		in.ID = api.BuildID(id)
		// An order, because a repeat would fail: the build is pending by then.
		return cli.Order(api.RequeueBuild)(ctx, s, in)
	}, cli.Text(func(w io.Writer, b api.BuildItem) { fmt.Fprintf(w, "%s %s\n", b.ID, b.Status) }), func(in *api.RequeueBuildIn, f *cli.Flags) {
		f.NeedReason(&in.Body.Reason, nil)
		cli.Arg(f, &in.ID)
	})
}

// Priority returns takt priority.
func Priority(env cli.Environment) *cobra.Command {
	var reason *string
	cmd := cli.Command(env, &cobra.Command{
		Use: "priority [flags] ID N", Short: "Change the priority of a build that waits", Args: cobra.ExactArgs(2),
		Long: `Change the priority of a pending build, from -10 to 10. Higher is built first. Among
builds of the same platform and priority keys take turns, and the builds of one key are
built in order of submission. Flags go before the id, because N may be negative.`,
		DisableFlagsInUseLine: true,
	}, func(ctx context.Context, s *cli.Session, args []string) error {
		priority, err := store.ParsePriority(args[1])
		if err != nil {
			return cli.AsUsage(err)
		}
		id, err := buildID(ctx, s, args[0])
		if err != nil {
			return err
		}
		build, err := s.Client.SetPriority(ctx, id, priority, *reason)
		return cli.Show(s, build, err, func(w io.Writer, _ api.BuildItem) { fmt.Fprintf(w, "%s priority %d\n", id, priority) })
	})
	reason = cli.ReasonFlag(cmd)
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// buildCommand makes do the body of a command for one build, with the token that was kept
// of it.
func buildCommand(env cli.Environment, cmd *cobra.Command, do func(ctx context.Context, w *waiter) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	return cli.Command(env, cmd, func(ctx context.Context, s *cli.Session, args []string) error {
		w, err := waiterOf(ctx, s, args[0])
		if err != nil {
			return err
		}
		return do(ctx, w)
	})
}

// waiterOf returns what watches the only build whose id begins with prefix.
func waiterOf(ctx context.Context, s *cli.Session, prefix string) (*waiter, error) {
	id, err := buildID(ctx, s, prefix)
	if err != nil {
		return nil, err
	}
	token, err := s.Tokens.Find(s.Client.BaseURL(), id)
	return &waiter{Session: s, id: id, auth: client.BuildAuth{Token: token}}, err
}

// idLength is how long ids are, and shortest how much of one has to be given: less may be a slip.
const idLength, shortest = 21, 4

// buildID returns the id of the only build whose id begins with prefix: of those whose token is
// kept here, and then of the last ones that the controller has.
func buildID(ctx context.Context, s *cli.Session, prefix string) (string, error) {
	switch {
	case !store.ValidID(prefix):
		return "", cli.Usage("%q is not a valid build id", prefix)
	case len(prefix) >= idLength:
		return prefix, nil
	case len(prefix) < shortest:
		return "", cli.Usage("%q is too short: give at least %d characters of a build's id", prefix, shortest)
	}
	found := s.Tokens.Begin(s.Client.BaseURL(), prefix)
	if len(found) == 0 {
		const most = 1000
		list, err := cli.Again(ctx, s, func(ctx context.Context) ([]api.BuildItem, error) {
			return s.Client.List(ctx, client.Filter{Q: prefix, Limit: most})
		})
		if err != nil {
			return "", err
		}
		for _, b := range list {
			if b.ID == prefix {
				return prefix, nil
			}
			if strings.HasPrefix(b.ID, prefix) {
				found = append(found, b.ID)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", store.NewError(store.NotFound, fmt.Sprintf("There is no build %s; takt list shows the newest", prefix))
	case 1:
		return found[0], nil
	}
	return "", cli.Usage("%d builds begin with %s: %s", len(found), prefix, strings.Join(found[:min(5, len(found))], ", "))
}

// Status returns takt status.
func Status(env cli.Environment) *cobra.Command {
	var wait bool
	cmd := buildCommand(env, &cobra.Command{Use: "status ID", Short: "Show the state of a build"}, func(ctx context.Context, w *waiter) error {
		if wait {
			return w.end(ctx)
		}
		status, err := cli.Again(ctx, w.Session, w.status)
		return cli.Show(w.Session, status, err, func(out io.Writer, status api.BuildStatus) {
			printStatus(out, status)
			if why := w.why(ctx); stateOf(status) == store.Pending && why != "" {
				fmt.Fprintln(out, why)
			}
		})
	})
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait for the build's end; exit code 6 if it failed")
	return cmd
}

// Why returns takt why.
func Why(env cli.Environment) *cobra.Command {
	return buildCommand(env, &cobra.Command{Use: "why ID", Short: "Show why a build waits, and when it may start"}, func(ctx context.Context, w *waiter) error {
		why, err := cli.Again(ctx, w.Session, func(ctx context.Context) (api.BuildWhy, error) { return w.Client.Why(ctx, w.id, w.auth) })
		return cli.Show(w.Session, why, err, func(out io.Writer, why api.BuildWhy) {
			if why.Reason == "" {
				fmt.Fprintf(out, "%s does not wait: it is %s. takt explain %s shows what happened\n", why.ID, why.State, why.ID)
				return
			}
			fmt.Fprintln(out, whyText(why))
			if why.WaitingSince != nil {
				fmt.Fprintln(out, "It waits for "+cli.Age(time.Since(why.WaitingSince.Time()))+".")
			}
			for _, near := range why.Nearest {
				fmt.Fprintln(out, "  "+near)
			}
		})
	})
}

// Explain returns takt explain.
func Explain(env cli.Environment) *cobra.Command {
	return buildCommand(env, &cobra.Command{Use: "explain ID", Short: "Show what happened to a build: attempts, workers, reasons"}, func(ctx context.Context, w *waiter) error {
		story, err := cli.Ask(api.ShowTimeline)(ctx, w.Session, api.BuildAccess{ID: api.BuildID(w.id), Token: w.auth.Token})
		return cli.Show(w.Session, story, err, func(out io.Writer, story api.BuildTimeline) {
			cli.List(out, []string{"AT", "WHAT", "WORKER", "DETAILS"}, story.Steps, func(s api.TimelineStep) []string {
				at := "now"
				if s.At != nil {
					at = cli.Time(s.At.Time())
				}
				return []string{at, s.Title, cmp.Or(s.WorkerName, s.WorkerID, "-"), store.Line(s.Text)}
			})
			if story.TraceID != "" {
				fmt.Fprintln(out, "trace", story.TraceID)
			}
		})
	})
}

func printStatus(w io.Writer, b api.BuildStatus) {
	rows := [][]string{{"build", b.ID}, {"state", cmp.Or(b.State, b.Status)}, {"platform", b.Platform}}
	row := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, store.Lines(value)})
		}
	}
	row("submitter", b.Submitter)
	row("retry of", b.RetryOf)
	row("retried as", strings.Join(b.Retries, " "))
	row("worker", cli.Or(b.WorkerID, ""))
	if b.Attempt > 0 {
		row("attempt", strconv.Itoa(b.Attempt))
	}
	if b.Priority != 0 {
		row("priority", strconv.Itoa(b.Priority))
	}
	row("require", b.Require)
	row("prefer", b.Prefer)
	for _, name := range slices.Sorted(maps.Keys(b.Labels)) {
		row("label", name+"="+b.Labels[name])
	}
	inputRows(row, b.Inputs, b.Ended)
	when := func(name string, at *api.Millis) {
		if at != nil {
			row(name, cli.Time(at.Time()))
		}
	}
	when("submitted", b.SubmittedAt)
	when("waits since", b.WaitingSince)
	when("started", b.StartedAt)
	when("ended", b.CompletedAt)
	if b.StartedAt != nil && b.CompletedAt != nil {
		row("took", b.CompletedAt.Time().Sub(b.StartedAt.Time()).Round(time.Millisecond).String())
	}
	cli.Table(w, rows)
	if reason := cli.Or(b.ErrorMessage, ""); reason != "" && stateOf(b) != store.Cancelled {
		fmt.Fprintf(w, "error\n%s\n", store.Lines(reason))
	}
}

// Logs returns takt logs.
func Logs(env cli.Environment) *cobra.Command {
	var follow bool
	var after, last int64
	var style cli.LogStyle
	cmd := buildCommand(env, &cobra.Command{
		Use: "logs ID", Short: "Show a build's log",
		Long: `Show a build's log. With --json each line is one JSON object; pass its seq to
--after to continue from there.`,
	}, func(ctx context.Context, w *waiter) error {
		if last < 0 {
			return cli.Usage("--tail: %d is less than 0", last)
		}
		w.follow, w.style, w.after = true, style, client.LogsAfter{Seq: after, Last: last}
		if !follow {
			return w.showLogs(ctx)
		}
		status, err := w.wait(ctx)
		return cmp.Or(err, verdict(status))
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show new lines until the build ends; exit code 6 if it failed")
	cmd.Flags().Int64Var(&after, "after", 0, "start after the line with this seq")
	cmd.Flags().Int64VarP(&last, "tail", "n", 0, "start with this many of the last lines")
	cmd.MarkFlagsMutuallyExclusive("after", "tail")
	cmd.Flags().BoolVar(&style.Raw, "raw", false, "show only what the build wrote")
	cmd.Flags().BoolVarP(&style.Timestamps, "timestamps", "t", false, "show date and time of each line")
	cmd.MarkFlagsMutuallyExclusive("raw", "timestamps")
	return cmd
}

// Retry returns takt retry.
func Retry(env cli.Environment) *cobra.Command {
	var wait, follow bool
	var reason *string
	var params paramFlags
	var unset []string
	var all several
	cmd := &cobra.Command{
		Use: "retry ID | --label NAME=VALUE | --suspect WORKER", Short: "Submit a build again, or all that failed and have some labels",
		Long: `Submit a build again, whatever its state, with the files that the controller still
has. Prints the new build's id and address. The new build's token is kept in the state directory, as
with submit.

The new build has the parameters, secrets and limits of the old one. --env changes
parameters, for which a build's token is not enough.

With --label: submit all builds again that have these labels and failed. Those that were
submitted again since are left out, so the same command retries only what failed again.

With --suspect: submit all builds again that failed on a worker while it was suspect, or
because of which it became so (takt workers). Other workers run them while it rests.`,
		Example: "  takt retry --label release=2.4\n  takt retry --suspect mini-02",
	}
	one := func(ctx context.Context, w *waiter) error {
		changes, err := params.changes(w.Session, env, unset)
		if err != nil {
			return err
		}
		// Retry is sent once because a repeat after a lost reply could queue the build
		// twice.
		build, err := w.Client.Retry(ctx, w.id, w.auth, *reason, changes)
		if err != nil {
			return err
		}
		if !changed(changes, build.Inputs) {
			return refuse(ctx, w.Session, build.ID, []string{"--env"})
		}
		err = created(w.Session, build.ID, build.AccessToken, struct {
			api.Retried
			AccessToken string `json:"access_token,omitempty"` // a secret, not shown
		}{Retried: build})
		if err == nil {
			w.Note("submitted again: %s/builds/%s", w.Client.BaseURL(), build.ID)
		}
		if err != nil || !wait && !follow {
			return err
		}
		w.id, w.auth, w.follow = build.ID, client.BuildAuth{Token: build.AccessToken}, follow
		return w.end(ctx)
	}
	reason = cli.ReasonFlag(cmd)
	params.add(cmd.Flags(), "replaces or adds a parameter")
	cmd.Flags().StringArrayVar(&unset, "unset-env", nil, "name of a parameter that the new build does not have; may be repeated")
	all.flags(cmd, "failed", "failed", "cancelled")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait for the build's end; exit code 6 if it failed")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show the log while waiting (implies --wait)")
	cmd.Flags().StringVar(&all.suspect, "suspect", "", "all builds that failed on this worker, by id or name, while it was suspect")
	all.alone = []string{"wait", "follow", "env", "env-file", "unset-env"}
	return cli.Command(env, cmd, func(ctx context.Context, s *cli.Session, args []string) error {
		if len(args) == 0 {
			suspect := ""
			if all.suspect != "" {
				var err error
				if suspect, err = cli.WorkerID(ctx, s.Client, all.suspect); err != nil {
					return err
				}
			}
			return all.change(ctx, s, cmd, "Retry", func(ctx context.Context, b api.SeveralBuilds) (api.SeveralChanged, error) {
				b.Reason = *reason
				return s.Client.RetryAll(ctx, api.RetryBuildsIn{State: all.state, Suspect: suspect, SeveralBuilds: b})
			})
		}
		w, err := waiterOf(ctx, s, args[0])
		if err != nil {
			return err
		}
		return one(ctx, w)
	})
}

// created saves the access token of a new build and shows the rest of the reply.
func created(s *cli.Session, id, token string, shown any) error {
	if err := s.Tokens.Keep(s.Client.BaseURL(), id, token, time.Now()); err != nil {
		s.Note("takt: the build's access token could not be kept: %v", err)
	}
	return s.Say(shown, "%s", id)
}

// Download returns takt download.
func Download(env cli.Environment) *cobra.Command {
	var output string
	cmd := buildCommand(env, &cobra.Command{
		Use: "download ID", Short: "Download a build's result",
		Long: `Download a build's result and check its digest. An interrupted download is kept as
FILE.part; run the command again to resume it.`,
	}, func(ctx context.Context, w *waiter) error { return downloadResult(ctx, w, output) })
	cmd.Flags().StringVarP(&output, "output", "o", "", "file or directory to write to, - for standard output (default: the build's id and its extension)")
	return cmd
}

// downloadResult writes a build's result to output, which appears only when it is complete;
// to standard output if it is "-", and into it if it is a directory.
func downloadResult(ctx context.Context, w *waiter, output string) error {
	dir := ""
	if info, err := os.Stat(output); err == nil && info.IsDir() {
		dir, output = output, ""
	}
	part := filepath.Join(dir, cmp.Or(output, w.id)+".part")
	if output == "-" {
		temporary, err := os.CreateTemp("", "takt-result-*")
		if err != nil {
			return err
		}
		part = temporary.Name()
		_ = temporary.Close()
		defer os.Remove(part) // a copy
	}
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // a result, as readable as any file its owner makes
	if err != nil {
		return cli.AsUsage(err)
	}
	defer f.Close()
	bar := cli.NewBar(w.Err, "downloading", w.JSON)
	got, err := w.Client.Download(ctx, w.id, w.auth, f, client.FetchOptions{Retry: w.Retry, Resume: output != "-", Progress: bar.Progress()})
	bar.Done()
	if err != nil {
		if info, statErr := f.Stat(); statErr == nil && info.Size() == 0 {
			_ = os.Remove(part)
		} else if statErr == nil && output != "-" {
			w.Note("takt: %s of the result are kept in %s; running the same command again resumes", humanize.Bytes(uint64(info.Size())), part)
		}
		return err
	}
	size := humanize.Bytes(uint64(got.Size))
	if output == "-" {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			_, err = io.Copy(w.Out, f)
		}
		w.Note("%s, SHA-256 right", size)
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if output == "" {
		output = filepath.Join(dir, w.id+filepath.Ext(filepath.Base(got.Name)))
	}
	if err := os.Rename(part, output); err != nil {
		return err
	}
	return w.Say(struct {
		File   string `json:"file"`
		Bytes  int64  `json:"bytes"`
		SHA256 string `json:"sha256"`
	}{output, got.Size, hex.EncodeToString(got.Digest[:])}, "%s: %s, SHA-256 right", output, size)
}
