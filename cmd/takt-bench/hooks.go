package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
	"takt/store/hubspot"
)

const (
	hookPath   = "/api/hubspot/action"
	hookHost   = "takt.test"
	hookSecret = "secret-of-the-bench"
	hookPortal = 62515
	hookAction = 10860211
	hookQueues = 8
)

// hook is HubSpot at one connection: it sends signed actions, each once.
type hook struct {
	name   string
	before []byte // the callback's id
	after  []byte
	n      int // acknowledged
}

func newHooks(run string, n int) []*hook {
	const mark = "@"
	out := make([]*hook, n)
	for i := range out {
		body := hubspottest.Webhook{PortalID: hookPortal, ActionID: hookAction, WorkflowID: int64(i % hookQueues), CallbackID: mark}.Body()
		before, after, _ := bytes.Cut(body, []byte(mark))
		out[i] = &hook{name: fmt.Sprintf("%s-%d", run, i), before: before, after: after}
	}
	return out
}

// Next implements load.Client.
func (h *hook) Next(buf []byte) []byte {
	body := fmt.Appendf(nil, "%s%s-%d%s", h.before, h.name, h.n, h.after)
	stamp := strconv.FormatInt(time.Now().UnixMilli(), 10)
	return fmt.Appendf(buf, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s: %s\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
		hookPath, hookHost, hubspot.HeaderTimestamp, stamp,
		hubspot.HeaderSignatureV3, hubspot.SignV3(hookSecret, "POST", "http://"+hookHost+hookPath, body, stamp), len(body), body)
}

// Got implements load.Client.
func (h *hook) Got(status int, body []byte) error {
	if status != 204 {
		return fmt.Errorf("webhook: status %d: %s", status, body)
	}
	h.n++
	return nil
}

// startHooked starts a controller that takes webhooks. HubSpot is not asked for anything.
func (r *run) startHooked(ctx context.Context, name string) *controller {
	c := r.start(ctx, name, "TAKT_HUBSPOT_CLIENT_SECRET="+hookSecret, "TAKT_HUBSPOT_API_URL=http://127.0.0.1:1")
	must.Get(client.Call(ctx, c.Client, api.SetRate, api.SetRateIn{ThrottleConfig: api.ThrottleConfig{
		PortalID: hookPortal, ActionID: hookAction, MaxThroughput: 1, TimePeriod: 1, TimeUnit: "day",
	}}))
	return c
}

// hooks takes D1: signed webhooks to takt, in turns with a server that does one
// INSERT for each, on the same PostgreSQL.
func (r *run) hooks(ctx context.Context) {
	host := r.startHooked(ctx, "hooks")
	naive := startNaiveHooks(ctx, r, host)
	var all []*hook
	send := func(name string) take {
		return func(i int) sample {
			sent := newHooks(fmt.Sprintf("%s-%d", name, i), connections)
			all = append(all, sent...)
			return host.loaded(ctx, r.duration, clients(sent))
		}
	}
	sendNaive := func(name string, d time.Duration) take {
		return func(i int) sample {
			return sample{Result: must.Get(load.Run(ctx, naive.address, d, clients(newHooks(fmt.Sprintf("%s-%d", name, i), connections))))}
		}
	}
	// Queues get their jobs, pools their size, and the peer as many connections as
	// serve it best.
	send("warm")(0)
	naive.tune(ctx, sendNaive("tune", r.duration/3))
	p := r.turns("D1: one INSERT per webhook, then takt", sendNaive("naive", r.duration), send("takt"))
	f := p.figure("D1", fmt.Sprintf("webhooks over HTTP, made durable, %d connections, against one INSERT for each", connections),
		fmt.Sprintf("naive with %d connections to PostgreSQL", naive.size)).atLeast(p.ratio(), 4, ", p99 < 25ms")
	f.met = f.met && median(p.own.p99) < 25*time.Millisecond
	r.add(f)
	r.compare(comparison{
		name: "D1", what: "the same against the trivial route of the same server", peer: "trivial",
		theirs: host.loading(ctx, r.duration, host.trivial(connections, 400)), own: send("again"), least: .6,
	})
	checkHooks(ctx, host.db, all)
}

// checkHooks looks for every action that was acknowledged: it is there once, and
// its queue has a living job.
func checkHooks(ctx context.Context, db database, sent []*hook) {
	total := 0
	var values strings.Builder
	for _, h := range sent {
		total += h.n
		fmt.Fprintf(&values, "%s\t%d\n", h.name, h.n)
	}
	script := "CREATE TEMP TABLE given (name text, n int);\nCOPY given FROM STDIN;\n" + values.String() + "\\.\n" + `
SELECT count(*) FROM given g CROSS JOIN generate_series(0, g.n - 1) i LEFT JOIN action_executions a
	ON a.portal_id = ` + strconv.Itoa(hookPortal) + ` AND a.callback_id = g.name || '-' || i WHERE a.callback_id IS NULL;`
	db.expect(ctx, "actions that were acknowledged and are lost", script, 0)
	db.expect(ctx, "queues with actions and without a living job", `SELECT count(*) FROM throttle_queues q LEFT JOIN river_job j ON j.id = q.job_id
		WHERE j.state IS NULL OR j.state NOT IN ('available', 'pending', 'running', 'retryable', 'scheduled')`, 0)
	db.expect(ctx, "actions in the database", "SELECT count(*) FROM action_executions", total)
}
