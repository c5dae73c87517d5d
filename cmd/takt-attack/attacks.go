package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// attack is what one kind of attacker does.
type attack struct {
	name, what string
	scopes     []store.Scope // of the attacker's key
	settings   []string      // of takt
	worker     bool          // a worker takes the attacker's builds
	// play attacks until ctx ends. It calls ready when all that it needs for that is there.
	play func(ctx context.Context, a *attacker, ready func()) error
}

// attacks lists all attacks. Each is by somebody who may do what the scopes allow, and no more.
func attacks() []attack {
	return []attack{
		{
			name: "connections", what: "one address shows its key once, and then holds all connections that it gets",
			scopes: []store.Scope{store.ScopeSubmit}, settings: []string{"TAKT_MAX_PARKED=500"}, play: connections,
		}, {
			name: "classes", what: "builds with as many different requirements as takt lets wait",
			scopes: []store.Scope{store.ScopeSubmit}, play: requirements,
		}, {
			name: "notices", what: "a worker comes and goes while the receiver of its notices is slow",
			scopes: []store.Scope{store.ScopeWorker}, settings: []string{"TAKT_NOTICE_ALLOW=127.0.0.1"}, play: flap,
		}, {
			name: "archives", what: "sources that consist of symbolic links, and of entries of a directory",
			scopes: []store.Scope{store.ScopeSubmit}, worker: true, play: archives,
		}, {
			name: "why", what: "workers with labels of their own, builds with requirements, and questions why they wait",
			scopes: []store.Scope{store.ScopeWorker, store.ScopeSubmit}, play: questions,
		}, {
			name: "bulk", what: "forms for many builds, by a session that may only read",
			scopes: []store.Scope{store.ScopeRead}, play: bulk,
		},
	}
}

func names() (all []string) {
	for _, a := range attacks() {
		all = append(all, a.name)
	}
	return all
}

func find(name string) *attack {
	all := attacks()
	if i := slices.IndexFunc(all, func(a attack) bool { return a.name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// describe lists the attacks for people.
func describe() string {
	var b strings.Builder
	for _, a := range attacks() {
		fmt.Fprintf(&b, "  %-12s %s\n", a.name, a.what)
	}
	return b.String()
}

// attacker is what the attacker's process knows. It comes from a file.
type attacker struct {
	Attack, Base, Key string
	OneCore           bool
	Workers, Classes  int
	Links, Entries    int

	*person `json:"-"`
}

// play is the attacker's process.
func play(ctx context.Context, file string, out io.Writer) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var a attacker
	if err := json.Unmarshal(raw, &a); err != nil {
		return err
	}
	if a.OneCore {
		runtime.GOMAXPROCS(1)
	}
	if a.person, err = newPerson(a.Base, attackerAddress, a.Key, "", 64); err != nil {
		return err
	}
	ready := sync.OnceFunc(func() { fmt.Fprintln(out, readyLine) })
	if err := find(a.Attack).play(ctx, &a, ready); err != nil && ctx.Err() == nil { // else it was asked to stop
		return err
	}
	return nil
}

// readyLine is what the attacker's process writes when it has all that it needs.
const readyLine = "attacking"

// many runs n loops of f until ctx ends. f gets its loop's number. What it returns is ignored,
// because attackers go on, but not at once where nobody answers.
func many(ctx context.Context, n int, f func(i int) error) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := f(i); err != nil && client.StatusOf(err) == 0 {
					process.Pause(ctx, 10*time.Millisecond)
				}
			}
		})
	}
	all.Wait()
}

// each calls f for 0 to n-1, twenty at once. takt may refuse what it does.
func each(ctx context.Context, n int, f func(i int) error) {
	_ = must.Spread(20, n, func(i int) {
		if ctx.Err() == nil {
			_ = f(i)
		}
	})
}

// connections holds idle connections, and opens each again that is closed. Every minute it shows
// its key on one.
func connections(ctx context.Context, a *attacker, ready func()) error {
	const most = 1100 // of 1024 that there are
	host := strings.TrimPrefix(a.Base, "http://")
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attackerAddress)}, Timeout: 2 * time.Second}
	head := "GET /api/workers?limit=1 HTTP/1.1\r\nHost: takt\r\nX-API-Key: " + a.Key + "\r\n\r\n" // it has no scope for that
	if _, err := a.client.Workers(ctx, client.WorkerFilter{Limit: 1}); client.StatusOf(err) != 403 {
		return fmt.Errorf("the key should have been refused: %w", err)
	}
	var begun sync.WaitGroup
	begun.Add(most)
	go func() {
		begun.Wait()
		ready()
	}()
	first := make([]sync.Once, most)
	many(ctx, most, func(i int) error {
		c, err := dialer.DialContext(ctx, "tcp", host)
		first[i].Do(begun.Done)
		if err != nil {
			return err
		}
		defer c.Close()
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		defer stop()
		for {
			if _, err := io.WriteString(c, head); err != nil { // an idle connection that has sent nothing is closed
				return err
			}
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, c); !errors.Is(err, os.ErrDeadlineExceeded) {
				return cmp.Or(err, io.EOF)
			}
		}
	})
	return nil
}

// requirements submits builds with different requirements, again and again.
func requirements(ctx context.Context, a *attacker, ready func()) error {
	each(ctx, a.Classes, func(i int) error {
		_, err := a.submit(ctx, fmt.Sprintf("mine=%d", i), nil)
		return err
	})
	ready()
	many(ctx, 4, func(i int) error {
		_, err := a.submit(ctx, fmt.Sprintf("mine=%d-%d", i, time.Now().UnixNano()), nil)
		return err
	})
	return nil
}

// flap registers and unregisters workers.
func flap(ctx context.Context, a *attacker, ready func()) error {
	ready()
	many(ctx, 4, func(i int) error {
		w, err := a.client.Register(ctx, api.Register{ID: fmt.Sprintf("flapping-worker-%d", i), Name: "flapping", Capabilities: []byte("{}")})
		if err == nil {
			_, err = a.client.Unregister(ctx, w.AccessToken)
		}
		return err
	})
	return nil
}

// archives submits sources that take more memory or disk than one thinks.
func archives(ctx context.Context, a *attacker, ready func()) error {
	sources := [][]byte{linksArchive(a.Links), directoryArchive(a.Entries)}
	ready()
	for i := 0; ctx.Err() == nil; i++ {
		made, err := a.client.Submit(ctx, client.Submit{Platform: store.Android, Source: client.Bytes(sources[i%2])})
		if err != nil {
			process.Pause(ctx, time.Second)
			continue
		}
		for ctx.Err() == nil { // until it has ended
			s, err := a.client.Status(ctx, made.ID, client.BuildAuth{})
			if err == nil && store.BuildState(s.State).Final() {
				break
			}
			process.Pause(ctx, 100*time.Millisecond)
		}
	}
	return nil
}

// questions registers workers with labels of their own, submits builds with fifteen conditions,
// and then asks for new ones why they wait.
func questions(ctx context.Context, a *attacker, ready func()) error {
	each(ctx, a.Workers, func(i int) error {
		labels := map[string]string{}
		for l := range 15 {
			labels[fmt.Sprintf("l%d", l)] = fmt.Sprint(i)
		}
		can, err := json.Marshal(map[string]any{"labels": labels})
		if err == nil {
			_, err = a.client.Register(ctx, api.Register{Name: fmt.Sprintf("worker %d", i), Capabilities: can})
		}
		return err
	})
	require := func(value string) string {
		var all []string
		for l := range 15 {
			all = append(all, fmt.Sprintf("l%d=%s", l, value))
		}
		return strings.Join(all, ",")
	}
	each(ctx, a.Classes-15, func(i int) error { // the others are for the loops
		_, err := a.submit(ctx, require(fmt.Sprint("x", i)), nil)
		return err
	})
	ready()
	many(ctx, 12, func(i int) error {
		id, err := a.submit(ctx, require(fmt.Sprintf("y%d-%d", i, time.Now().UnixNano())), nil)
		if err == nil {
			_, _ = a.client.Why(ctx, id, client.BuildAuth{}) // it may be refused
			_, err = a.client.Cancel(ctx, id, "")
		}
		return err
	})
	return nil
}

// bulk sends forms that name as many builds as fit.
func bulk(ctx context.Context, a *attacker, ready func()) error {
	if err := a.Login(ctx, a.Key); err != nil {
		return err
	}
	form := url.Values{"act": {"cancel"}, "reason": {"x"}}
	for i := range 1600 {
		form.Add("id", fmt.Sprintf("%06d", i))
	}
	ready()
	many(ctx, 24, func(int) error {
		_, err := a.Visit(ctx, "/builds/bulk", "", form)
		return err
	})
	return nil
}
