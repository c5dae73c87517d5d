package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"takt/cmd/internal/load"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// The addresses of all parties. Linux has all of 127.0.0.0/8 on loopback.
const (
	attackerAddress = "127.0.0.2"
	victimAddress   = "127.0.0.3"
	operatorAddress = "127.0.0.4"
	probesAddress   = "127.0.0.5"
)

// patience is after what time a request counts as refused.
const patience = 15 * time.Second

// person is somebody with a key at an address.
type person struct {
	load.Browser
	client *client.Client
}

// newPerson returns somebody whose connections have this local address. Victims have a
// connection of their own for each request, as somebody does who comes anew.
func newPerson(base, address, key, admin string, keep int) (*person, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	p := &person{Browser: load.Browser{Base: base, Client: &http.Client{
		Transport: &http.Transport{
			DialContext: d.DialContext, DisableKeepAlives: keep == 0, MaxIdleConnsPerHost: keep, DisableCompression: true,
		},
		CheckRedirect: load.NoRedirects,
	}}}
	var err error
	p.client, err = client.New(client.Config{BaseURL: base, APIKey: key, AdminKey: admin, HTTPClient: p.Client})
	return p, err
}

// page gets a page.
func (p *person) page(path string) func(context.Context) error {
	return func(ctx context.Context) error {
		status, err := p.Visit(ctx, path, "", nil)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	}
}

// submit submits a build of a byte.
func (p *person) submit(ctx context.Context, require string, labels store.Labels) (id string, err error) {
	made, err := p.client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("x")), Require: require, Labels: labels})
	return made.ID, err
}

// sample is a request: when it was due, how long it took from then on, and what was wrong.
type sample struct {
	at   time.Time
	took time.Duration
	what string
	err  error
}

// series are the requests of one party. Its methods may be called from any goroutine.
type series struct {
	mu  sync.Mutex
	all []sample
}

func (s *series) add(one sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, one)
}

// between returns the requests that were due in a time.
func (s *series) between(from, to time.Time) (some samples) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if !one.at.Before(from) && one.at.Before(to) {
			some = append(some, one)
		}
	}
	return some
}

type samples []sample

// quantile is the time that a part q of the requests did not exceed.
func (s samples) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	s = slices.SortedFunc(slices.Values(s), func(a, b sample) int { return int(a.took - b.took) })
	return s[min(int(q*float64(len(s))), len(s)-1)].took
}

// slowest says what the slowest twentieth of the requests asked for.
func (s samples) slowest() string {
	limit, n := s.quantile(.95), map[string]int{}
	for _, one := range s {
		if one.took >= limit {
			n[one.what]++
		}
	}
	var all []string
	for _, what := range slices.SortedFunc(maps.Keys(n), func(a, b string) int { return n[b] - n[a] }) {
		all = append(all, fmt.Sprintf("%d × %s", n[what], what))
	}
	return "slow: " + strings.Join(all, ", ")
}

// refused counts the requests that failed, by what was wrong.
func (s samples) refused() (n int, why map[string]int) {
	why = map[string]int{}
	for _, one := range s {
		if one.err != nil {
			n++
			why[one.what+": "+cause(one.err)]++
		}
	}
	return n, why
}

// cause says what was wrong, without what differs from request to request.
func cause(err error) string {
	if status := client.StatusOf(err); status != 0 {
		return fmt.Sprintf("%d %s", status, store.CodeOf(err))
	}
	for next := err; next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err.Error()
}

// request is what a party sends, with a name.
type request struct {
	name string
	send func(context.Context) error
}

// keep sends the requests in turn, so many each second, until ctx ends, and waits for the last
// reply.
func (s *series) keep(ctx context.Context, rate int, requests ...request) {
	var sent sync.WaitGroup
	defer sent.Wait()
	ticks := time.NewTicker(time.Second / time.Duration(rate))
	defer ticks.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case due := <-ticks.C:
			sent.Go(func() {
				r := requests[i%len(requests)]
				limit, stop := context.WithTimeout(context.WithoutCancel(ctx), patience)
				defer stop()
				err := r.send(limit)
				s.add(sample{due, time.Since(due), r.name, err})
			})
		}
	}
}

// victim returns what somebody with the scopes submit and read does: it submits builds with
// requirements and labels, asks for them, and cancels them.
func victim(ctx context.Context, p *person, cancelled func(id string)) ([]request, error) {
	first, err := p.submit(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	pending := make(chan string, 1000)
	var n atomic.Int64
	return []request{
		{"submit", func(ctx context.Context) error {
			id, err := p.submit(ctx, fmt.Sprintf("victim=%d", n.Add(1)%3), store.Labels{"team": "victim"})
			if err == nil {
				pending <- id
			}
			return err
		}},
		{"status", func(ctx context.Context) error {
			_, err := p.client.Status(ctx, first, client.BuildAuth{})
			return err
		}},
		{"why", func(ctx context.Context) error {
			_, err := p.client.Why(ctx, first, client.BuildAuth{})
			return err
		}},
		{"list", func(ctx context.Context) error {
			_, err := p.client.List(ctx, client.Filter{Limit: 5})
			return err
		}},
		{"page", p.page("/overview")},
		{"cancel", func(ctx context.Context) error {
			select {
			case id := <-pending:
				_, err := p.client.Cancel(ctx, id, "")
				if err == nil {
					cancelled(id)
				}
				return err
			default: // the one that was submitted last is still under way
				return nil
			}
		}},
	}, nil
}

// operator returns what operators watch.
func operator(p *person) []request {
	return []request{{"/admin/tree", func(ctx context.Context) error {
		_, err := client.Call(ctx, p.client, api.ShowTree, api.ShowTreeIn{})
		return err
	}}}
}

// probes returns what machines ask without a key.
func probes(p *person) []request {
	return []request{{"/livez", p.page("/livez")}, {"/readyz", p.page("/readyz")}, {"/metrics", p.page("/metrics")}}
}

// receiver is a receiver of notices, which are answered after a time.
type receiver struct {
	delay time.Duration
	mu    sync.Mutex // held while a channel is closed
	got   sync.Map   // a channel per build, which is closed when its notice has come
}

// come is closed when the notice of a build has come.
func (r *receiver) come(id string) chan struct{} {
	c, _ := r.got.LoadOrStore(id, make(chan struct{}))
	return c.(chan struct{})
}

func (r *receiver) note(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.come(id): // it comes once more
	default:
		close(r.come(id))
	}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var body struct{ Data struct{ ID string } }
	if json.NewDecoder(io.LimitReader(q.Body, 1<<20)).Decode(&body) == nil {
		r.note(body.Data.ID)
	}
	select {
	case <-q.Context().Done():
	case <-time.After(r.delay):
	}
	w.WriteHeader(http.StatusNoContent)
}
