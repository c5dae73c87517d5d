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
	if health, err := client.Call(ctx, c, api.ShowHealth, api.None{}); err != nil {
		d.bad("controller", "takt tree shows what is not running, and its log why", "it does not work: %s", cli.Message(err))
	} else {
		d.healthy(health)
	}
	if admin {
		d.tree(c.Tree(ctx, client.TreeOptions{}))
	}
	if _, err := c.Workers(ctx, client.WorkerFilter{Limit: 1}); err != nil {
		d.bad("keys", "set TAKT_API_KEY to the controller's", "the API key: %s", cli.Message(err))
		return
	}
	d.well("keys", "the API key is right")
	d.workers(c.Workers(ctx, client.WorkerFilter{}))
	d.onTheWay(ctx, c)
}

// workers tells of those that are suspect, and warns of those whose builds can read their keys.
func (d *doctor) workers(all api.WorkerList, err error) {
	const check = "workers"
	if err != nil {
		d.bad(check, "the message says why", "%s", cli.Message(err))
		return
	}
	doubtful, failed := d.doubtful, d.failed
	for _, w := range all.Workers {
		if w.Suspect != nil && w.State == store.WorkerSuspect {
			d.bad(check, fmt.Sprintf("takt workers drain %s --reason suspect, repair it, takt retry --suspect %[1]s", w.ID), "%s is suspect: %s", w.Name, w.Suspect.Reason)
		}
		if g := w.Diagnostics; g != nil && w.Status != "offline" && strings.HasPrefix(g.Message, api.KeyExposed) {
			d.warn(check, runner.MendKey, "%s: %s", w.Name, api.KeyExposed)
		}
	}
	if d.doubtful == doubtful && d.failed == failed {
		d.well(check, "none of %d is suspect, or says that its builds can read its key", all.Total)
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
	d.well(check, "it works; %d builds wait, %d run", h.Queue.Pending, h.Queue.Active)
}

func (d *doctor) tree(root api.TreeNode, err error) {
	const check = "tree"
	if err != nil {
		d.bad("keys", "set TAKT_ADMIN_KEY to the controller's", "the admin key: %s", cli.Message(err))
		return
	}
	failed := d.failed
	var look func(n api.TreeNode)
	look = func(n api.TreeNode) {
		switch {
		case n.Status == "terminated":
			d.bad(check, "takt start "+n.Path+" --reason ... starts it; takt audit says who terminated it", "%s was terminated", n.Path)
			return // what is below stands still for the same reason
		case n.Status != "running" && n.Type == "worker":
			d.bad(check, "the controller's log says why; takt restart "+n.Path+" --reason ... tries again", "%s is %s %s", n.Path, n.Status, n.Detail)
		}
		if n.Leaked > 0 {
			d.bad(check, "takt debug bundle, and report it", "%s has leaked %d processes", n.Path, n.Leaked)
		}
		for _, child := range n.Children {
			look(child)
		}
	}
	look(root)
	if d.failed == failed {
		d.well(check, "all of it runs")
	}
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
