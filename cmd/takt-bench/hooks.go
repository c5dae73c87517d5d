package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"takt/cmd/internal/load"
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
	name string
	body []byte // the callback's id is in the middle
	at   int    // where
	n    int    // acknowledged
}

func newHooks(run string) []*hook {
	const mark = "@"
	out := make([]*hook, connections)
	for i := range out {
		body := hubspottest.Webhook{PortalID: hookPortal, ActionID: hookAction, WorkflowID: int64(i % hookQueues), CallbackID: mark}.Body()
		at := strings.Index(string(body), mark)
		out[i] = &hook{name: fmt.Sprintf("%s-%d", run, i), at: at, body: append(body[:at:at], body[at+len(mark):]...)}
	}
	return out
}

// Next implements load.Client.
func (h *hook) Next(buf []byte) []byte {
	body := append([]byte{}, h.body[:h.at]...)
	body = append(body, h.name...)
	body = append(body, '-')
	body = strconv.AppendInt(body, int64(h.n), 10)
	body = append(body, h.body[h.at:]...)
	stamp := strconv.FormatInt(time.Now().UnixMilli(), 10)
	buf = append(buf, "POST "+hookPath+" HTTP/1.1\r\nHost: "+hookHost+"\r\nContent-Type: application/json\r\n"+hubspot.HeaderTimestamp+": "...)
	buf = append(buf, stamp...)
	buf = append(buf, "\r\n"+hubspot.HeaderSignatureV3+": "...)
	buf = append(buf, hubspot.SignV3(hookSecret, "POST", "http://"+hookHost+hookPath, body, stamp)...)
	buf = append(buf, "\r\nContent-Length: "...)
	buf = strconv.AppendInt(buf, int64(len(body)), 10)
	buf = append(buf, "\r\n\r\n"...)
	return append(buf, body...)
}

// Got implements load.Client.
func (h *hook) Got(status int, body []byte) error {
	if status != 204 {
		return fmt.Errorf("webhook: status %d: %s", status, body)
	}
	h.n++
	return nil
}

// hooks takes D1: signed webhooks to takt, in turns with a server that does one
// INSERT for each, on the same PostgreSQL.
func (r *run) hooks(ctx context.Context) error {
	const nowhere = "http://127.0.0.1:1" // HubSpot is not asked for anything
	host, err := r.start(ctx, "hooks", "TAKT_HUBSPOT_CLIENT_SECRET="+hookSecret, "TAKT_HUBSPOT_API_URL="+nowhere)
	if err != nil {
		return err
	}
	if _, err := client.Call(ctx, host.Client, api.SetRate, api.SetRateIn{ThrottleConfig: api.ThrottleConfig{
		PortalID: hookPortal, ActionID: hookAction, MaxThroughput: 1, TimePeriod: 1, TimeUnit: "day",
	}}); err != nil {
		return err
	}
	naive, err := startNaiveHooks(ctx, host)
	if err != nil {
		return err
	}
	defer naive.stop()
	var all []*hook
	send := func(name, address string, d time.Duration) take {
		return func(ctx context.Context, i int) (sample, error) {
			sent := newHooks(fmt.Sprintf("%s-%d", name, i))
			if address == host.Address {
				all = append(all, sent...)
				return host.loaded(ctx, d, clients(sent))
			}
			res, err := load.Run(ctx, address, d, clients(sent))
			return sample{Result: res}, err
		}
	}
	// Queues get their jobs, pools their size, and the peer as many connections as
	// serve it best.
	if _, err := send("warm", host.Address, r.duration)(ctx, 0); err != nil {
		return err
	}
	if err := naive.tune(ctx, send("tune", naive.address, r.duration/3)); err != nil {
		return err
	}
	p, err := r.turns(ctx, "D1: one INSERT per webhook, then takt", send("naive", naive.address, r.duration), send("takt", host.Address, r.duration))
	if err != nil {
		return err
	}
	p99 := median(p.own.p99)
	f := figure{
		name: "D1", what: fmt.Sprintf("webhooks over HTTP, made durable, %d connections, against one INSERT for each", connections),
		measured: fmt.Sprintf("%.0f/s (p99 %s), naive %.0f/s with %d connections to PostgreSQL", p.own.rate(), round(p99), p.peer.rate(), naive.size), cpu: p.own.cpu().String(),
	}.atLeast(p.ratio(), 4, ", p99 < 25ms")
	f.met = f.met && p99 < 25*time.Millisecond
	r.add(f)
	if p, err = r.turns(ctx, "D1: the trivial route, then webhooks", host.loading(r.duration, host.trivial(connections, 400)), send("again", host.Address, r.duration)); err != nil {
		return err
	}
	r.add(figure{
		name: "D1", what: "the same against the trivial route of the same server",
		measured: fmt.Sprintf("%s, trivial %.0f/s", &p.own, p.peer.rate()), cpu: p.cpu(),
	}.atLeast(p.ratio(), .45, ""))
	return checkHooks(ctx, host.db, all)
}

// checkHooks looks for every action that was acknowledged: it is there once, and
// its queue has a living job.
func checkHooks(ctx context.Context, db database, sent []*hook) error {
	total := 0
	var values strings.Builder
	for _, h := range sent {
		total += h.n
		fmt.Fprintf(&values, "%s\t%d\n", h.name, h.n)
	}
	script := "CREATE TEMP TABLE given (name text, n int);\nCOPY given FROM STDIN;\n" + values.String() + "\\.\n" + `
SELECT count(*) FROM given g CROSS JOIN generate_series(0, g.n - 1) i LEFT JOIN action_executions a
	ON a.portal_id = ` + strconv.Itoa(hookPortal) + ` AND a.callback_id = g.name || '-' || i WHERE a.callback_id IS NULL;`
	if err := db.none(ctx, "actions that were acknowledged and are lost", script); err != nil {
		return err
	}
	if err := db.none(ctx, "queues with actions and without a living job", `SELECT count(*) FROM throttle_queues q LEFT JOIN river_job j ON j.id = q.job_id
		WHERE j.state IS NULL OR j.state NOT IN ('available', 'pending', 'running', 'retryable', 'scheduled')`); err != nil {
		return err
	}
	return db.expect(ctx, "actions in the database", "SELECT count(*) FROM action_executions", total)
}
