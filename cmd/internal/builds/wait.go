package builds

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// waiter watches a build.
type waiter struct {
	*cli.Session
	id   string
	auth client.BuildAuth
	// saves is set if the result is saved in any case.
	saves bool
	// follow also shows the log while the build runs, in style.
	follow bool
	style  cli.LogStyle

	after client.LogsAfter // Last only for the first lines
	shown int
	begun time.Time
	told  string // last state and reason shown
	last  string // last line of the log
}

// logPage is the maximum number of lines in one request.
const logPage = 5000

// wait returns when the build has ended. While the controller is unavailable, it waits.
func (w *waiter) wait(ctx context.Context) (_ api.BuildStatus, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			w.Note("build %[1]s goes on: takt logs -f %[1]s follows it, takt cancel %[1]s cancels it", w.id)
		}
	}()
	pace := backoff.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	if w.follow {
		pace.Max = time.Second
	}
	w.Retry.Patience, w.Retry.Max = 0, 30*time.Second
	w.begun = time.Now()
	if w.follow {
		if !w.JSON {
			if why := w.why(ctx); why != "" {
				w.Note("%s: %s. %s", w.id, store.Pending, why)
			}
		}
		if w.after.Last > 0 {
			if err := w.showLogs(ctx); err != nil {
				return api.BuildStatus{}, err
			}
		}
		if err := w.tail(ctx); err != nil && !errors.Is(err, client.ErrNoStream) {
			return api.BuildStatus{}, err
		}
	}
	defer w.Status("")
	for n := 0; ; n++ {
		status, err := cli.Again(ctx, w.Session, w.status)
		if err != nil {
			return status, err
		}
		if w.follow {
			// The log is read after the status, so that no line before the end is missed.
			if err := w.showLogs(ctx); err != nil {
				return status, err
			}
		}
		if stateOf(status).Final() {
			return status, nil
		}
		if !w.follow && !w.JSON {
			w.tell(ctx, status)
		}
		if err := backoff.Pause(ctx, pace.Wait(n)); err != nil {
			return status, err
		}
	}
}

func (w *waiter) status(ctx context.Context) (api.BuildStatus, error) {
	return w.Client.Status(ctx, w.id, w.auth)
}

// tell shows the build's state: on a terminal always, elsewhere only after a change. It
// leaves out what it can't read.
func (w *waiter) tell(ctx context.Context, status api.BuildStatus) {
	state, took := stateOf(status), time.Since(w.begun).Round(time.Second)
	text := string(state)
	if state == store.Pending {
		if why := w.why(ctx); why != "" {
			text += ". " + why
		}
	} else if page, err := w.Client.Logs(ctx, w.id, w.auth, client.LogsAfter{Seq: w.after.Seq, Limit: logPage}); err == nil {
		if n := len(page.Logs); n > 0 {
			w.last, w.after.Seq = store.Line(page.Logs[n-1].Message), page.Logs[n-1].Seq
		}
	}
	if text != w.told {
		w.told = text
		w.Note("%s: %s", w.id, text)
	}
	w.Status(text + "  " + took.String() + "  " + w.last)
}

// why says why the build waits, and when it may start; "" if it does not wait, or if the
// controller is too old to know.
func (w *waiter) why(ctx context.Context) string {
	why, err := w.Client.Why(ctx, w.id, w.auth)
	if err != nil || why.Reason == "" {
		return ""
	}
	return whyText(why)
}

func whyText(why api.BuildWhy) string {
	if why.Start != "" {
		why.Reason += " Estimated start: " + why.Start + "."
	}
	return why.Reason
}

func stateOf(s api.BuildStatus) store.BuildState { return store.BuildState(cmp.Or(s.State, s.Status)) }

// end waits until the build has ended, shows its result, and returns an error unless the
// build completed.
func (w *waiter) end(ctx context.Context) error {
	status, err := w.wait(ctx)
	if err == nil {
		err = w.Result(status, func(out io.Writer) { printStatus(out, status) })
	}
	if err != nil {
		return err
	}
	if stateOf(status) == store.Completed && !w.saves {
		w.Note("takt download %s saves the result", w.id)
	}
	return verdict(status)
}

// tail shows the log as it is written, until the build ends. It continues after a broken
// stream from the last line shown.
func (w *waiter) tail(ctx context.Context) error {
	_, err := cli.Again(ctx, w.Session, func(ctx context.Context) (api.LogEnd, error) {
		return w.Client.TailLogs(ctx, w.id, w.auth, w.after.Seq, func(line api.LogEntry) error {
			w.after.Seq = line.Seq
			w.shown++
			return w.show(line)
		})
	})
	return err
}

// showLogs shows the lines that were not shown yet.
func (w *waiter) showLogs(ctx context.Context) error {
	for {
		w.after.Limit = logPage
		page, err := cli.Again(ctx, w.Session, func(ctx context.Context) (api.Logs, error) {
			return w.Client.Logs(ctx, w.id, w.auth, w.after)
		})
		if err != nil {
			return err
		}
		fresh := page.Logs
		if len(fresh) > 0 && fresh[0].Seq == 0 { // this controller sends all lines each time
			fresh = fresh[min(w.shown, len(fresh)):]
		}
		for _, line := range fresh {
			if err := w.show(line); err != nil {
				return err
			}
			w.after.Seq, w.after.Last = max(w.after.Seq, line.Seq), 0
		}
		w.shown += len(fresh)
		if len(fresh) < logPage {
			return nil
		}
	}
}

func (w *waiter) show(line api.LogEntry) error {
	if w.JSON {
		return cli.EncodeJSON(w.Out, line)
	}
	w.style.Line(w.Out, line)
	return nil
}

// verdict returns nil for a completed build, else an error.
func verdict(status api.BuildStatus) error {
	switch state := stateOf(status); state {
	case store.Completed:
		return nil
	case store.Failed, store.Cancelled:
		reason := cli.Or(status.ErrorMessage, "")
		if e := status.Ended; e != nil && (e.By != "" || e.Why != "") {
			return cli.BuildFailedError{ID: status.ID, State: string(state) + store.ByWhy(e.By, e.Why)}
		}
		return cli.BuildFailedError{ID: status.ID, State: string(state), Reason: reason}
	default:
		return errors.New("build " + status.ID + " is " + string(state))
	}
}
