package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/runner"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// Ready returns takt ready.
func Ready(env cli.Environment) *cobra.Command {
	return cli.Row(env, &cobra.Command{
		Use: "ready", Short: "Check that the controller is ready, for health checks",
		Long: `Check that the controller is ready (GET /readyz): its database is reachable and
migrated, and it is not stopping. Sends one request and needs no key. Exit code 5 if
it is not ready.`,
	}, cli.Order(api.IsReady), cli.Text(func(w io.Writer, s api.Status) { fmt.Fprintln(w, s.Status) }), nil)
}

// controller looks at a controller that should run, as its clients reach it.
func (d *doctor) controller(ctx context.Context, c *client.Client, admin bool) {
	at, err := c.Clock(ctx)
	if err != nil {
		d.bad("controller", "start it, and check the URL, the firewall and the proxy on the way", "%s: %s", c.BaseURL(), cli.Message(err))
		return
	}
	d.clock("the controller's", time.Until(at))
	away := false
	switch health, err := client.Call(ctx, c, api.ShowHealth, api.None{}); {
	case store.IsUnavailable(err): // what needs attention says why
		away = true
	case err != nil:
		d.bad("controller", "takt tree shows what is not running, and its log why", "it does not work: %s", cli.Message(err))
	default:
		d.healthy(health)
	}
	if !away && !d.apiKey(c.Workers(ctx, client.WorkerFilter{Limit: 1})) {
		return
	}
	d.attention(client.Call(ctx, c, api.ShowAttention, api.None{}))
	if away {
		return
	}
	if admin {
		d.adminKey(c.Tree(ctx, client.TreeOptions{}))
	}
	d.workers(c.Workers(ctx, client.WorkerFilter{}))
	d.onTheWay(ctx, c)
}

// apiKey tells whether the API key is right.
func (d *doctor) apiKey(_ api.WorkerList, err error) bool {
	if err != nil {
		d.bad("keys", "set TAKT_API_KEY to the controller's, or to a key with the scope read", "the API key: %s", cli.Message(err))
		return false
	}
	d.well("keys", "the API key is right")
	return true
}

// attention tells what needs attention, as the dashboard does.
func (d *doctor) attention(now api.Attention, err error) {
	const check = "attention"
	switch {
	case store.CodeOf(err) == store.NotFound: // an older release
		d.warn(check, "upgrade it", "this controller does not say what needs attention")
	case err != nil:
		d.bad(check, "the message says why", "%s", cli.Message(err))
	}
	open := 0
	for _, p := range now.Problems {
		todo := p.Todo
		if p.Command != "" {
			todo += " (" + p.Command + ")"
		}
		tell := d.warn
		switch a := p.Acknowledged; {
		case a != nil:
			d.well(p.Kind, "%s Acknowledged by %s until %s: %s", p.Text, a.By, cli.TimeText(a.Until), a.Reason)
			continue
		case p.Severity == "bad":
			tell = d.bad
		}
		open++
		tell(p.Kind, todo, "%s", p.Text)
	}
	if err == nil && open == 0 {
		d.well(check, "nothing needs attention")
	}
}

// adminKey tells whether the admin key is right.
func (d *doctor) adminKey(_ api.TreeNode, err error) {
	if err != nil {
		d.bad("keys", "set TAKT_ADMIN_KEY to the controller's", "the admin key: %s", cli.Message(err))
		return
	}
	d.well("keys", "the admin key is right")
}

// workers warns of workers whose builds can read their keys.
func (d *doctor) workers(all api.WorkerList, err error) {
	const check = "workers"
	if err != nil {
		d.bad(check, "the message says why", "%s", cli.Message(err))
		return
	}
	doubtful := d.doubtful
	for _, w := range all.Workers {
		if g := w.Diagnostics; g != nil && w.Status != "offline" && strings.HasPrefix(g.Message, api.KeyExposed) {
			d.warn(check, runner.MendKey, "%s: %s", w.Name, api.KeyExposed)
		}
	}
	if d.doubtful == doubtful {
		d.well(check, "none of %d says that its builds can read its key", all.Total)
	}
}

func (d *doctor) healthy(h api.Health) {
	const check = "controller"
	if held := h.Database.VacuumHeldBackSeconds; held > 0 {
		d.bad(check, "the controller's log names the session that holds it: end that", "an old snapshot has kept vacuum from its work for %d s", held)
	}
	if ok, _ := h.Storage["ok"].(bool); !ok {
		d.bad(check, "the controller's log says why; takt doctor on its machine looks closer", "its storage check failed")
		return
	}
	if len(h.Reasons) > 0 {
		d.warn(check, "what needs attention says what to do", "it works, but refuses builds: %s", joined(h.Reasons))
		return
	}
	d.well(check, "it works; %d builds wait, %d run", h.Queue.Pending, h.Queue.Active)
}

// joined lists codes.
func joined(all []store.Code) string {
	texts := make([]string, len(all))
	for i, c := range all {
		texts[i] = string(c)
	}
	return strings.Join(texts, ", ")
}

// streamPatience is how long the first bytes of a stream may take.
const streamPatience = 5 * time.Second

// onTheWay looks at what proxies do to a stream and to a poll, at the same time.
func (d *doctor) onTheWay(ctx context.Context, c *client.Client) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	start := time.Now()
	go func() {
		ended <- c.Events(ctx, []string{"supervisor:event"}, func(string, json.RawMessage) error {
			select {
			case begun <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	const check = "streams"
	timer := time.NewTimer(streamPatience)
	defer timer.Stop()
	flows := false
	select {
	case <-begun:
		flows = true
	case err := <-ended:
		d.bad(check, "the proxy has to pass text/event-stream on", "a stream does not begin: %s", cli.Message(err))
	case <-timer.C:
		d.bad(check, "turn off the proxy's buffering of replies (nginx: proxy_buffering off)", "the first bytes of a stream did not arrive within %s", streamPatience)
	case <-ctx.Done():
		return
	}
	d.longPoll(ctx, c)
	if !flows {
		return
	}
	select {
	case err := <-ended:
		if ctx.Err() == nil {
			d.bad(check, "raise the proxy's read time-out to 60 s or more (nginx: proxy_read_timeout 90s)", "a stream was cut: %s", cli.Message(err))
		}
	default:
		d.well(check, "the first bytes came at once, and it was open for %s", time.Since(start).Round(time.Second))
	}
}

// longPoll has a poll parked for its whole time by a worker that takes no builds.
func (d *doctor) longPoll(ctx context.Context, c *client.Client) {
	const check = "long polls"
	const mend = "raise the proxy's read time-out to 60 s or more (nginx: proxy_read_timeout 90s), or lower --poll-wait of takt worker"
	me, err := c.Register(ctx, api.Register{Name: "takt doctor", Capabilities: json.RawMessage(`{"platforms":["none"]}`)})
	if err != nil {
		d.bad(check, "the message says why", "a worker can't register: %s", cli.Message(err))
		return
	}
	begun := time.Now()
	_, err = c.Poll(ctx, client.Poll{Token: me.AccessToken, Wait: d.poll})
	took := time.Since(begun)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		d.bad(check, mend, "a poll of %s was cut off after %s: %s", d.poll, took.Round(100*time.Millisecond), cli.Message(err))
	case took < d.poll-time.Second:
		d.bad(check, "look for what answers in the controller's place, and at takt_queue_parked_polls against --max-parked",
			"a poll of %s came back after %s", d.poll, took.Round(100*time.Millisecond))
	default:
		d.well(check, "a poll of %s came back whole", d.poll)
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), checkLimit, errSlowCheck)
	defer cancel()
	if _, err := client.Call(ctx, c, api.DeleteWorker, api.DeleteWorkerIn{WorkerPath: api.WorkerPath{ID: api.WorkerID(me.ID)}, Why: api.Why{Reason: "takt doctor"}}); err != nil {
		d.bad(check, "takt workers delete "+me.ID, "the worker of this check stays: %s", cli.Message(err))
	}
}
