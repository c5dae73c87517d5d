package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"takt/cmd/internal/load"
	"takt/http/api"
	"takt/http/hubspot"
	"takt/http/hubspottest"
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
func (r *run) hooks(ctx context.Context) (err error) {
	const nowhere = "http://127.0.0.1:1" // HubSpot is not asked for anything
	host, err := r.Controller(ctx, "hooks", "TAKT_HUBSPOT_CLIENT_SECRET="+hookSecret, "TAKT_HUBSPOT_API_URL="+nowhere)
	if err != nil {
		return err
	}
	defer ending(ctx, host, &err)
	_, err = host.Client.SetThrottle(ctx, api.ThrottleConfig{
		PortalID: hookPortal, ActionID: hookAction, MaxThroughput: 1, TimePeriod: 1, TimeUnit: "day",
	})
	if err != nil {
		return err
	}
	db := databaseOf(host)
	peer, err := startNaiveHooks(ctx, host)
	if err != nil {
		return err
	}
	defer peer.stop()
	var all []*hook
	send := func(name, address string, d time.Duration) (load.Result, error) {
		sent := newHooks(name)
		if address == host.Address {
			all = append(all, sent...)
		}
		clients := make([]load.Client, len(sent))
		for i, h := range sent {
			clients[i] = h
		}
		return load.Run(ctx, address, d, clients)
	}
	// Queues get their jobs, pools their size, and the peer as many connections as
	// serve it best.
	if _, err := send("warm", host.Address, r.duration); err != nil {
		return err
	}
	if err := peer.tune(ctx, func(size int) (float64, error) {
		res, err := send(fmt.Sprintf("tune-%d", size), peer.address, max(r.duration/3, time.Second))
		return res.Rate(), err
	}); err != nil {
		return err
	}
	var ratios, rates, peers []float64
	var slow []time.Duration
	for i := range r.rounds {
		r.say("D1: one INSERT per webhook, then takt, round %d of %d", i+1, r.rounds)
		one, err := send(fmt.Sprintf("naive-%d", i), peer.address, r.duration)
		if err != nil {
			return err
		}
		own, err := send(fmt.Sprintf("takt-%d", i), host.Address, r.duration)
		if err != nil {
			return err
		}
		rates, peers, ratios, slow = append(rates, own.Rate()), append(peers, one.Rate()), append(ratios, own.Rate()/one.Rate()), append(slow, own.Quantile(.99))
	}
	r.add(figure{
		name: "D1", what: fmt.Sprintf("webhooks over HTTP, made durable, %d connections, against one INSERT for each", connections),
		measured: fmt.Sprintf("%.0f/s (p99 %s), naive %.0f/s with %d connections to PostgreSQL", median(rates), median(slow).Round(100*time.Microsecond), median(peers), peer.size),
		ratio:    fmt.Sprintf("%.2f", median(ratios)), target: "≥ 4.0, p99 < 25ms", met: median(ratios) >= 4 && median(slow) < 25*time.Millisecond,
	})
	return checkHooks(ctx, db, all)
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
DO $$ BEGIN
  IF EXISTS (SELECT FROM given g CROSS JOIN generate_series(0, g.n - 1) i LEFT JOIN action_executions a
             ON a.portal_id = ` + strconv.Itoa(hookPortal) + ` AND a.callback_id = g.name || '-' || i WHERE a.callback_id IS NULL) THEN
    RAISE 'an action was acknowledged and is lost';
  END IF;
  IF EXISTS (SELECT FROM throttle_queues q LEFT JOIN river_job j ON j.id = q.job_id
             WHERE j.state IS NULL OR j.state NOT IN ('available', 'pending', 'running', 'retryable', 'scheduled')) THEN
    RAISE 'a queue with actions has no living job';
  END IF;
END $$;`
	if err := db.exec(ctx, script); err != nil {
		return err
	}
	return db.expect(ctx, "actions in the database", "SELECT count(*) FROM action_executions", total)
}
