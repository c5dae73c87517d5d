package main

import (
	"context"
	"fmt"
	"mime/multipart"
	"strings"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
)

// alone takes A11 for polls: what one worker waits for while nobody else is there.
func (r *run) alone(ctx context.Context) (err error) {
	host, err := r.Controller(ctx, "alone")
	if err != nil {
		return err
	}
	defer ending(ctx, host, &err)
	db := databaseOf(host)
	pollers, err := newPollers(ctx, host, db, 2) // who holds builds is not idle
	if err != nil {
		return err
	}
	free, holder := pollers[:1], pollers[1:]
	var idle, trivial, assigned series
	for i := range r.rounds {
		r.say("A11: one connection, round %d of %d", i+1, r.rounds)
		for _, c := range []struct {
			to      *series
			clients []load.Client
		}{{&trivial, trifles(host, 1)}, {&idle, clientsOf(free, true)}} {
			got, err := r.loaded(ctx, host, host, r.duration/2, c.clients)
			if err != nil {
				return err
			}
			c.to.add(got)
		}
		if err := r.refill(ctx, db, int(4_000*r.duration.Seconds())); err != nil {
			return err
		}
		if err := sees(ctx, host, true); err != nil {
			return err
		}
		got, err := r.loaded(ctx, host, host, r.duration/2, clientsOf(holder, false))
		if err != nil {
			return err
		}
		assigned.add(got)
		if err := db.exec(ctx, "UPDATE builds SET state = 'cancelled', completed_at = now() WHERE state = 'pending';"); err != nil {
			return err
		}
		if err := sees(ctx, host, false); err != nil {
			return err
		}
	}
	p50, peer := median(idle.p50), median(trivial.p50)
	ratio, cpu := float64(p50)/float64(peer), float64(idle.cpu().takt)/float64(max(trivial.cpu().takt, 1))
	r.add(figure{
		name: "A11", what: "an idle poll over one connection against the trivial route: p50 and takt's CPU",
		measured: fmt.Sprintf("p50 %s, trivial %s", round(p50), round(peer)), cpu: idle.cpu().String() + fmt.Sprintf(" (trivial %d µs)", trivial.cpu().takt.Microseconds()),
		ratio: fmt.Sprintf("%.2f; %.2f", ratio, cpu), target: "≤ 1.3; ≤ 1.3", met: ratio <= 1.3 && cpu <= 1.3,
	})
	r.add(figure{
		name: "A11", what: "an assigned poll over one connection", measured: assigned.String(), cpu: assigned.cpu().String(),
		ratio: fmt.Sprintf("%.2f ms", median(assigned.p50).Seconds()*1000), target: "≤ 1.0 ms", met: median(assigned.p50) <= time.Millisecond,
	})
	return r.checkHandedOutOnce(ctx, db, pollers)
}

// sees waits until takt has seen that something is pending, or nothing: what is
// done behind its back it finds by a count.
func sees(ctx context.Context, c *process.Controller, pending bool) error {
	for {
		n, err := c.Metric(ctx, "takt_queue_pending_builds")
		if err != nil || n > 0 == pending {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

const (
	submitters   = 16
	submitSource = 2_000
)

// submitter submits one small build after the other.
type submitter struct {
	request []byte
	n       int
}

func newSubmitters(key string, n int) (out []*submitter, clients []load.Client) {
	var body strings.Builder
	w := multipart.NewWriter(&body)
	source, _ := w.CreateFormFile("source", "source.zip") // a builder takes everything
	_, _ = source.Write([]byte(strings.Repeat("s", submitSource)))
	_ = w.WriteField("platform", "ios")
	_ = w.Close()
	request := fmt.Sprintf("POST /api/builds HTTP/1.1\r\nHost: takt\r\nX-API-Key: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		key, w.FormDataContentType(), body.Len(), body.String())
	for range n {
		s := &submitter{request: []byte(request)}
		out, clients = append(out, s), append(clients, s)
	}
	return out, clients
}

// Next implements load.Client.
func (s *submitter) Next(buf []byte) []byte { return append(buf, s.request...) }

// Got implements load.Client.
func (s *submitter) Got(status int, body []byte) error {
	if status != 201 {
		return fmt.Errorf("submit: status %d: %s", status, body)
	}
	s.n++
	return nil
}

// submits takes A11 for submits.
func (r *run) submits(ctx context.Context) (err error) {
	host, err := r.Controller(ctx, "submits")
	if err != nil {
		return err
	}
	defer ending(ctx, host, &err)
	older, err := r.older(ctx, "submits-older")
	if err != nil {
		return err
	}
	defer ending(ctx, older, &err)
	var own, peer series
	var ratios []float64
	total := 0
	for i := range r.rounds {
		r.say("A11: submits over %d connections, round %d of %d", submitters, i+1, r.rounds)
		if older != nil {
			_, clients := newSubmitters(older.APIKey, submitters)
			got, err := r.loaded(ctx, older, older, r.duration, clients)
			if err != nil {
				return err
			}
			peer.add(got)
		}
		sent, clients := newSubmitters(host.APIKey, submitters)
		got, err := r.loaded(ctx, host, host, r.duration, clients)
		if err != nil {
			return err
		}
		own.add(got)
		for _, s := range sent {
			total += s.n
		}
		if older != nil {
			ratios = append(ratios, got.Rate()/peer.rates[i])
		}
	}
	f := figure{
		name: "A11", what: fmt.Sprintf("submits of %d bytes, %d connections, against the older takt", submitSource, submitters),
		measured: own.String(), cpu: own.cpu().String(), target: "≥ 2.0, none lost", alone: older == nil,
	}
	if older != nil {
		f.measured += fmt.Sprintf(", older %s, %s", &peer, peer.cpu())
		f.ratio, f.met = fmt.Sprintf("%.2f", median(ratios)), median(ratios) >= 2
	}
	r.add(f)
	return databaseOf(host).expect(ctx, "builds with their source", `SELECT count(*) FROM builds b JOIN build_files f ON f.build = b.seq AND f.kind = 'source'`, total)
}
