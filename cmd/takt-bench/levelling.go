package main

import (
	"context"
	"fmt"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
)

// trifle asks for next to nothing: a heartbeat that lacks a parameter, which the
// handler refuses after key, admission, place and process, without the
// database.
type trifle struct{ key string }

// Next implements load.Client.
func (t trifle) Next(buf []byte) []byte {
	buf = append(buf, "POST /api/builds/x/heartbeat HTTP/1.1\r\nHost: takt\r\nContent-Length: 0\r\nX-API-Key: "...)
	buf = append(buf, t.key...)
	return append(buf, "\r\n\r\n"...)
}

// Got implements load.Client.
func (t trifle) Got(status int, body []byte) error {
	if status != 400 {
		return fmt.Errorf("heartbeat without worker_id: status %d: %s", status, body)
	}
	return nil
}

// trifles are n connections that ask for it.
func trifles(c *process.Controller, n int) []load.Client {
	clients := make([]load.Client, n)
	for i := range clients {
		clients[i] = trifle{c.APIKey}
	}
	return clients
}

// levelling takes C1: the same route with load levelling on and off, in turns.
func (r *run) levelling(ctx context.Context) (err error) {
	on, err := r.Controller(ctx, "levelled")
	if err != nil {
		return err
	}
	defer ending(ctx, on, &err)
	off, err := r.Controller(ctx, "unlevelled", "TAKT_HEIJUNKA=off")
	if err != nil {
		return err
	}
	defer ending(ctx, off, &err)
	rate := func(c *process.Controller) (float64, time.Duration, error) {
		res, err := load.Run(ctx, c.Address, r.duration, trifles(c, connections))
		if err != nil {
			return 0, 0, err
		}
		return res.Rate(), res.Quantile(.99), nil
	}
	var ratios, rates, peers []float64
	var p99 time.Duration
	for i := range r.rounds {
		r.say("C1: levelling off, then on, round %d of %d", i+1, r.rounds)
		peer, _, err := rate(off)
		if err != nil {
			return err
		}
		own, slow, err := rate(on)
		if err != nil {
			return err
		}
		rates, peers, ratios, p99 = append(rates, own), append(peers, peer), append(ratios, own/peer), slow
	}
	r.add(figure{
		name: "C1", what: fmt.Sprintf("a trivial route with levelling on against off, %d connections", connections),
		measured: fmt.Sprintf("%.0f/s (p99 %s), off %.0f/s", median(rates), p99.Round(100*time.Microsecond), median(peers)),
		ratio:    fmt.Sprintf("%.2f", median(ratios)), target: "≥ 0.95", met: median(ratios) >= .95,
	})
	return nil
}
