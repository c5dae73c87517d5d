package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

const (
	drillSubmitters = 3
	drillWorkers    = 8
	// drillOpen is how many builds may be under way at once.
	drillOpen = 100
	// drillKills is how many workers a build may lose: its third attempt is its last.
	drillKills = 2
)

// ledger is what the drill's clients know: which builds there are, who holds them, and
// which promises were broken. Safe for concurrent use.
type ledger struct {
	mu      sync.Mutex // guards what follows
	builds  map[string]*drillBuild
	workers []*drillWorker // alive
	faults  map[string]int
	broken  []string

	repeated, completed int
	longest             time.Duration
	longestCall         string
}

// drillBuild is one build.
type drillBuild struct {
	accepted bool
	want     [sha256.Size]byte // digest of its result, once accepted
	holder   *drillWorker
	kills    int
	done     bool // its result was acknowledged
}

// drillWorker is one life of a worker.
type drillWorker struct {
	id, token string
	build     string
	dead      bool // guarded by ledger.mu, like build
	kill      context.CancelCauseFunc
}

// of returns what is known of a build. The caller holds mu.
func (l *ledger) of(id string) *drillBuild {
	if l.builds == nil {
		l.builds = map[string]*drillBuild{}
	}
	b := l.builds[id]
	if b == nil {
		b = &drillBuild{}
		l.builds[id] = b
	}
	return b
}

// accept notes that a submit was acknowledged. want is the digest of the result.
func (l *ledger) accept(id string, want [sha256.Size]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.of(id)
	b.accepted, b.want = true, want
}

// take notes that w was given a build. It returns false if w is dead: nobody has the
// build then.
func (l *ledger) take(id string, w *drillWorker) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.dead {
		return false
	}
	b := l.of(id)
	switch {
	case b.done:
		l.broke1("%s was given to %s after its result was taken", id, w.id)
	case b.holder != nil && b.holder != w:
		l.broke1("%s was given to %s while %s held it", id, w.id, b.holder.id)
	}
	b.holder, w.build = w, id
	return true
}

// deliver notes that a result was acknowledged.
func (l *ledger) deliver(w *drillWorker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.dead {
		return
	}
	b := l.of(w.build)
	b.done, b.holder, w.build = true, nil, ""
}

func (l *ledger) join(w *drillWorker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.workers = append(l.workers, w)
}

// kill ends the life of a worker: where, from 0 to 1, says which. It reports whether
// there was one that could be killed.
func (l *ledger) kill(where float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.workers) == 0 {
		return false
	}
	i := int(where * float64(len(l.workers)))
	w := l.workers[i]
	if w.build != "" {
		b := l.of(w.build)
		if b.kills == drillKills {
			return false
		}
		b.kills++
		b.holder = nil
	}
	w.dead = true
	l.workers = append(l.workers[:i], l.workers[i+1:]...)
	w.kill(errKilled)
	return true
}

// full reports whether enough builds are under way. Those of killed workers count extra:
// their results may have been taken unseen, or they wait for the build time-out.
func (l *ledger) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := drillOpen
	for _, b := range l.builds {
		if !b.done {
			limit--
		}
		if b.kills > 0 {
			limit++
		}
	}
	return limit <= 0
}

func (l *ledger) fault(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults == nil {
		l.faults = map[string]int{}
	}
	l.faults[name]++
}

// called notes how long a call took with its repeats.
func (l *ledger) called(what string, repeats int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.repeated += repeats
	if repeats > 0 && took > l.longest {
		l.longest, l.longestCall = took, what
	}
}

func (l *ledger) complete() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.completed++
}

func (l *ledger) broke(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broke1(format, args...)
}

// broke1 is broke for a caller that holds mu.
func (l *ledger) broke1(format string, args ...any) {
	l.broken = append(l.broken, fmt.Sprintf(format, args...))
}

// accepted returns the accepted builds and the digests of their results.
func (l *ledger) accepted() map[string][sha256.Size]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][sha256.Size]byte{}
	for id, b := range l.builds {
		if b.accepted {
			all[id] = b.want
		}
	}
	return all
}

func (l *ledger) report(seed uint64, length time.Duration) drillReport {
	accepted := l.accepted()
	l.mu.Lock()
	defer l.mu.Unlock()
	return drillReport{
		Seed: seed, Seconds: length.Seconds(), Faults: l.faults, Accepted: len(accepted), Completed: l.completed,
		Repeated: l.repeated, LongestWait: l.longest.Seconds(), LongestCall: l.longestCall, Broken: append([]string{}, l.broken...),
	}
}

// resultOf returns the result of a build with a source of this digest.
func resultOf(source client.Digest) []byte { return bytes.Repeat(source[:], 2048) }

// submit submits builds until over is closed.
func (d *drill) submit(ctx context.Context, over <-chan struct{}, chance *rand.Rand) {
	for ctx.Err() == nil {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(chance.Int64N(int64(200 * time.Millisecond)))):
		}
		if d.seen.full() {
			continue
		}
		source := make([]byte, 1+chance.IntN(256<<10))
		for i := range source {
			source[i] = byte(chance.Uint32())
		}
		platform := []store.Platform{store.IOS, store.Android}[chance.IntN(2)]
		s := client.Submit{Platform: platform, Source: client.Bytes(source), IdempotencyKey: client.NewIdempotencyKey()}
		var accepted api.Submitted
		err := d.again(ctx, "submit", func(ctx context.Context) (err error) {
			accepted, err = d.client.Submit(ctx, s)
			return err
		})
		if err == nil {
			d.seen.accept(accepted.ID, sha256.Sum256(resultOf(sha256.Sum256(source))))
		}
	}
}

var errKilled = fmt.Errorf("killed by the drill")

// work is a worker, and those that come after it when it was killed: under its id, or
// another worker.
func (d *drill) work(ctx context.Context, chance *rand.Rand) {
	id := ""
	for ctx.Err() == nil {
		life, kill := context.WithCancelCause(ctx)
		w := &drillWorker{id: id, kill: kill}
		d.live(life, w, chance)
		kill(nil)
		if ctx.Err() != nil {
			d.leave(context.WithoutCancel(ctx), w)
		}
		if id = w.id; chance.IntN(2) == 0 {
			id = ""
		}
		pause(ctx, time.Duration(chance.Int64N(int64(2*time.Second))))
	}
}

// live takes builds until ctx ends.
func (d *drill) live(ctx context.Context, w *drillWorker, chance *rand.Rand) {
	if d.again(ctx, "register", func(ctx context.Context) error { return d.register(ctx, w) }) != nil {
		return
	}
	d.seen.join(w)
	for ctx.Err() == nil {
		var reply api.PollReply
		if d.again(ctx, "poll", func(ctx context.Context) (err error) {
			reply, err = d.client.Poll(ctx, client.Poll{Token: w.token, Wait: 5 * time.Second, Active: []string{}})
			if store.CodeOf(err) == store.InvalidToken { // it has waited for longer than a token lives
				err = d.register(ctx, w)
			}
			return err
		}) != nil {
			return
		}
		if reply.AccessToken != "" {
			w.token = reply.AccessToken
		}
		if reply.Job != nil && d.seen.take(reply.Job.ID, w) {
			d.build(ctx, w, *reply.Job, time.Duration(chance.Int64N(int64(1500*time.Millisecond))))
		}
	}
}

func (d *drill) register(ctx context.Context, w *drillWorker) error {
	reply, err := d.client.Register(ctx, api.Register{ID: w.id, Name: "drill", Capabilities: []byte("{}"), ActiveBuilds: []string{}})
	if err == nil {
		w.id, w.token = reply.ID, reply.AccessToken
	}
	return err
}

// leave unregisters a worker. A failure leaves a worker that is offline later.
func (d *drill) leave(ctx context.Context, w *drillWorker) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, _ = d.client.DeleteWorker(ctx, w.id)
}

// build fetches a source, works for so long and delivers the result, with a beat each
// half second.
func (d *drill) build(ctx context.Context, w *drillWorker, job api.Job, work time.Duration) {
	held := client.Held{BuildID: job.ID, WorkerID: w.id, Attempt: job.Attempt}
	beating, stop := context.WithCancelCause(ctx)
	var beats sync.WaitGroup
	beats.Go(func() { d.beat(beating, held) })
	var source client.Fetched
	err := d.again(ctx, "source of "+job.ID, func(ctx context.Context) (err error) {
		source, err = d.client.Source(ctx, held, void{}, client.FetchOptions{Retry: client.Retry{Attempts: 1}})
		return err
	})
	pause(ctx, work)
	stop(nil) // a beat may be refused once the result is taken; uploads are beats too
	beats.Wait()
	if err != nil {
		return
	}
	result := client.Bytes(resultOf(source.Digest))
	err = d.again(ctx, "result of "+job.ID, func(ctx context.Context) error {
		_, err := d.client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &result})
		return err
	})
	if err == nil {
		d.seen.deliver(w)
	}
}

// beat sends beats until ctx ends.
func (d *drill) beat(ctx context.Context, held client.Held) {
	for ctx.Err() == nil {
		_ = d.again(ctx, "beat of "+held.BuildID, func(ctx context.Context) error {
			reply, err := d.client.Heartbeat(ctx, held, nil)
			if err == nil && reply.Cancelled {
				d.seen.broke("%s was taken from %s, which was alive", held.BuildID, held.WorkerID)
			}
			return err
		})
		pause(ctx, 500*time.Millisecond)
	}
}

// verify waits until every accepted build has ended, and compares its result. Only the
// wait is bounded, because the time to compare all results depends on their number; a
// controller that no longer answers ends it.
func (d *drill) verify(ctx context.Context) {
	accepted := d.seen.accepted()
	d.Note("%6.1f s  no more faults, %d builds to check", time.Since(d.begun).Seconds(), len(accepted))
	end := time.Now().Add(d.patience)
	checks, working := errgroup.WithContext(ctx)
	checks.SetLimit(drillWorkers)
	for id, want := range accepted {
		checks.Go(func() error {
			limited, cancel := context.WithTimeoutCause(working, 2*d.patience, fmt.Errorf("no answer for %s", 2*d.patience))
			defer cancel()
			err := d.verifyBuild(limited, id, want, end)
			switch {
			case err == nil:
				d.seen.complete()
			case working.Err() != nil: // of no interest after another's
			case limited.Err() != nil:
				d.seen.broke("%s: %v", id, context.Cause(limited))
				return err
			default:
				d.seen.broke("%s: %v", id, err)
			}
			return nil
		})
	}
	_ = checks.Wait() // what fails is recorded
}

// verifyBuild compares the result of a build, which has to end before end.
func (d *drill) verifyBuild(ctx context.Context, id string, want [sha256.Size]byte, end time.Time) error {
	for {
		var now api.BuildStatus
		if err := d.again(ctx, "status of "+id, func(ctx context.Context) (err error) {
			now, err = d.client.Status(ctx, id, client.BuildAuth{})
			return err
		}); err != nil {
			return err
		}
		if store.BuildState(now.Status).Final() {
			if now.Status != string(store.Completed) {
				return fmt.Errorf("ended %s", now.Status)
			}
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("not ended %s after the last fault", d.patience)
		}
		pause(ctx, time.Second)
	}
	var got client.Fetched
	err := d.again(ctx, "result of "+id, func(ctx context.Context) (err error) {
		got, err = d.client.Download(ctx, id, client.BuildAuth{}, void{}, client.FetchOptions{Retry: client.Retry{Attempts: 1}})
		return err
	})
	if err == nil && got.Digest != want {
		err = fmt.Errorf("its result is not the one that was built: %x", got.Digest)
	}
	return err
}

// void is a download's target that keeps nothing: the digest is enough.
type void struct{}

func (void) Read([]byte) (int, error)       { return 0, io.EOF }
func (void) Write(p []byte) (int, error)    { return len(p), nil }
func (void) Seek(int64, int) (int64, error) { return 0, nil }
func (void) Truncate(int64) error           { return nil }
