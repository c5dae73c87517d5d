package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

const (
	connections     = 64
	manyConnections = 1024
)

// request is an HTTP request, whole; headers end with a line break each.
func request(buf []byte, line, key, headers, body string) []byte {
	return fmt.Appendf(buf, "%s HTTP/1.1\r\nHost: takt\r\nX-API-Key: %s\r\n%sContent-Length: %d\r\n\r\n%s", line, key, headers, len(body), body)
}

// clients are connections as the load generator takes them.
func clients[T load.Client](from []T) []load.Client {
	out := make([]load.Client, len(from))
	for i, c := range from {
		out[i] = c
	}
	return out
}

// repeater sends the same request again and again.
type repeater struct {
	request  []byte
	statuses []int // the answers that are right
	began    time.Time
	took     []time.Duration // of each answer with the first of statuses
}

func repeaters(n int, request []byte, statuses ...int) []*repeater {
	out := make([]*repeater, n)
	for i := range out {
		out[i] = &repeater{request: request, statuses: statuses}
	}
	return out
}

// Next implements load.Client.
func (r *repeater) Next(buf []byte) []byte {
	r.began = time.Now()
	return append(buf, r.request...)
}

// Got implements load.Client.
func (r *repeater) Got(status int, body []byte) error {
	if !slices.Contains(r.statuses, status) {
		return fmt.Errorf("%s: status %d: %s", bytes.SplitN(r.request, []byte(" HTTP"), 2)[0], status, body)
	}
	if status == r.statuses[0] {
		r.took = append(r.took, time.Since(r.began))
	}
	return nil
}

// trivial are n connections that ask for next to nothing: a heartbeat that lacks a
// parameter, which the handler refuses after key, admission, place and process,
// without the database. It is answered with one of statuses, 400 if it is admitted.
func (c *controller) trivial(n int, statuses ...int) []load.Client {
	return clients(repeaters(n, request(nil, "POST /api/builds/x/heartbeat", c.APIKey, "", ""), statuses...))
}

// poller is a worker that only polls, with rotating tokens as the contract has
// it. It remembers what it was given.
type poller struct {
	key, id, token string
	name, platform string    // the platform that it builds for; empty for all
	at             time.Time // since when it has the token
	jobs           []string
	idle           bool // no job is expected, and after a poll: none came
	either         bool // nor its absence
	renewed        bool // it has registered again, and may be given its builds again
}

// Next implements load.Client.
func (p *poller) Next(buf []byte) []byte { return p.poll(buf, "") }

func (p *poller) poll(buf []byte, query string) []byte {
	for _, part := range []string{
		"GET /api/workers/poll", query, " HTTP/1.1\r\nHost: takt\r\nX-API-Key: ", p.key, "\r\nX-Worker-Token: ", p.token, "\r\n\r\n",
	} {
		buf = append(buf, part...)
	}
	return buf
}

// Got implements load.Client. It cuts the two strings out of the compact reply:
// a full decoder would cost the machine as much as the server's own work.
func (p *poller) Got(status int, body []byte) error {
	if status != 200 {
		return fmt.Errorf("poll: status %d: %s", status, body)
	}
	token, ok := cut(body, `"access_token":"`)
	if !ok {
		return fmt.Errorf("poll: no token in %s", body)
	}
	p.token, p.at = token, time.Now()
	job, ok := cut(body, `"job":{"id":"`)
	if p.either {
		p.idle = !ok
	} else if ok == p.idle {
		return fmt.Errorf("poll: job expected: %t, got %s", !p.idle, body)
	}
	if ok {
		p.jobs = append(p.jobs, job)
	}
	return nil
}

// cut returns what stands between prefix and the next quote.
func cut(body []byte, prefix string) (string, bool) {
	_, rest, ok := bytes.Cut(body, []byte(prefix))
	value, _, end := bytes.Cut(rest, []byte(`"`))
	return string(value), ok && end
}

// oneLine is a log post of one line.
const oneLine = `{"level":"info","message":"one more line"}`

// logs is a post to the log of a build of p.
func (p *poller) logs(build, body string) []byte {
	return request(nil, "POST /api/builds/"+build+"/logs", p.key, "X-Worker-Id: "+p.id+"\r\nContent-Type: application/json\r\n", body)
}

// register registers p, again if it has an id: it keeps its builds then.
func (c *controller) register(ctx context.Context, p *poller) error {
	can := api.Capabilities{MaxConcurrentBuilds: 256}
	if p.platform != "" {
		can.Platforms = []string{p.platform}
	}
	capabilities, err := json.Marshal(can)
	if err != nil {
		return err
	}
	reg, err := c.Client.Register(ctx, api.Register{ID: p.id, Name: p.name, Capabilities: capabilities})
	if err != nil {
		return fmt.Errorf("registering: %w", err)
	}
	p.renewed = p.renewed || p.id != ""
	p.id, p.token, p.at = reg.ID, reg.AccessToken, time.Now()
	return nil
}

// pollers registers n workers that may hold any number of builds, so that each of
// their polls can be given one: the contract's own limit is lifted in the database.
func (c *controller) pollers(ctx context.Context, n int) []*poller {
	out := newPollers(c.APIKey, n)
	c.renew(ctx, out)
	return out
}

func newPollers(key string, n int) []*poller {
	out := make([]*poller, n)
	for i := range out {
		out[i] = &poller{key: key, name: fmt.Sprint("bench-", i)}
	}
	return out
}

// renewAfter is the age at which a poller's token is renewed before a load: they live 90 s,
// and filling a database may take longer.
const renewAfter = store.WorkerTokenTTL / 3

// renew gives those pollers new tokens whose own may expire soon.
func (c *controller) renew(ctx context.Context, pollers []*poller) {
	if c.registerOld(ctx, pollers) > 0 {
		c.db.exec(ctx, "UPDATE workers SET slots = 1000000 WHERE slots < 1000000;")
	}
}

// registerOld registers those pollers whose tokens are old, and says how many these are.
func (c *controller) registerOld(ctx context.Context, pollers []*poller) int {
	var old []*poller
	for _, p := range pollers {
		if time.Since(p.at) >= renewAfter {
			old = append(old, p)
		}
	}
	must.Do(must.Spread(connections, len(old), func(i int) { must.Do(c.register(ctx, old[i])) }))
	return len(old)
}

// polling takes a load of pollers that expect jobs, or none.
func (c *controller) polling(ctx context.Context, d time.Duration, pollers []*poller, idle bool) take {
	return func(int) sample {
		c.renew(ctx, pollers)
		return c.loaded(ctx, d, polling(pollers, idle))
	}
}

// polling are the pollers as clients that expect jobs, or none.
func polling(pollers []*poller, idle bool) []load.Client {
	for _, p := range pollers {
		p.idle = idle
	}
	return clients(pollers)
}

// holding gives each of these pollers a build, of which enough are pending.
func (c *controller) holding(ctx context.Context, pollers []*poller) {
	c.renew(ctx, pollers)
	must.Do(must.Spread(connections, len(pollers), func(i int) {
		for p := pollers[i]; len(p.jobs) == 0; {
			got := must.Get(c.Client.Poll(ctx, client.Poll{Token: p.token, Wait: 10 * time.Second}))
			p.token, p.at = got.AccessToken, time.Now()
			if got.Job != nil {
				p.jobs = append(p.jobs, got.Job.ID)
			}
		}
	}))
}

// holders are those of pollers that have a build.
func holders(pollers []*poller) (out []*poller) {
	for _, p := range pollers {
		if len(p.jobs) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// paced is a client that sends at a fixed rate, or as fast as it is answered if
// that is slower.
type paced struct {
	load.Client
	every time.Duration
	next  time.Time
}

// at lets clients send so many requests a second in all, evenly spread.
func at(rate float64, clients []load.Client) []load.Client {
	every := time.Duration(float64(len(clients)) / rate * float64(time.Second))
	out := make([]load.Client, len(clients))
	for i, c := range clients {
		out[i] = &paced{c, every, time.Now().Add(every * time.Duration(i) / time.Duration(len(clients)))}
	}
	return out
}

// Next implements load.Client.
func (p *paced) Next(buf []byte) []byte {
	<-time.After(time.Until(p.next))
	p.next = p.next.Add(p.every)
	return p.Client.Next(buf)
}

// shift is a connection over which several workers poll in turn.
type shift struct {
	pollers []*poller
	at      int
}

// shifts lets pollers work over some connections.
func shifts(pollers []*poller) []load.Client {
	out := make([]*shift, connections)
	for i := range out {
		out[i] = &shift{pollers: pollers[i*len(pollers)/len(out) : (i+1)*len(pollers)/len(out)]}
	}
	return clients(out)
}

// Next implements load.Client.
func (s *shift) Next(buf []byte) []byte {
	s.at = (s.at + 1) % len(s.pollers)
	return s.pollers[s.at].Next(buf)
}

// Got implements load.Client.
func (s *shift) Got(status int, body []byte) error { return s.pollers[s.at].Got(status, body) }
