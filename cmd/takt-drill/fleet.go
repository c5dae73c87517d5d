package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

const (
	submitters = 3
	// simulatedWorkers are within this process, where the drill knows what they hold; workerProcesses are
	// of `takt worker`.
	simulatedWorkers, workerProcesses = 8, 2
	// maxOpenBuilds is how many builds may be under way at once.
	maxOpenBuilds = 100
)

// submit submits builds until over is closed. A build's result is the file data of its
// source.
func (d *drill) submit(ctx context.Context, over <-chan struct{}, random *rand.Rand) {
	for ctx.Err() == nil {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(random.Int64N(int64(200 * time.Millisecond)))):
		}
		var health api.Health
		if d.retry(ctx, "health", func(ctx context.Context) (err error) {
			health, err = client.Call(ctx, d.site.client, api.ShowHealth, api.None{})
			return err
		}) != nil || health.Queue.Pending+health.Queue.Active >= maxOpenBuilds {
			process.Pause(ctx, time.Second)
			continue
		}
		o := newSubmission(random)
		var accepted api.Submitted
		err := d.retry(ctx, "submit", func(ctx context.Context) (err error) {
			accepted, err = d.site.client.Submit(ctx, o.submit)
			return err
		})
		if err == nil {
			d.ledger.accept(accepted.ID, o.digest)
		}
	}
}

// submission is a build to submit, and the digest of its result.
type submission struct {
	submit client.Submit
	digest [sha256.Size]byte
}

func newSubmission(random *rand.Rand) submission {
	data := make([]byte, 1+random.IntN(256<<10))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	platform := []store.Platform{store.IOS, store.Android}[random.IntN(2)]
	return submission{client.Submit{Platform: platform, Source: client.Bytes(pack(data)), IdempotencyKey: client.NewIdempotencyKey()}, sha256.Sum256(data)}
}

// pack returns a source with this file.
func pack(data []byte) []byte {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	w, _ := z.CreateHeader(&zip.FileHeader{Name: "data", Method: zip.Store})
	_, _ = w.Write(data) // memory does not fail
	_ = z.Close()
	return out.Bytes()
}

func unpack(source []byte) ([]byte, error) {
	z, err := zip.NewReader(bytes.NewReader(source), int64(len(source)))
	if err != nil {
		return nil, err
	}
	f, err := z.Open("data")
	if err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// workerLoop is a worker, and those that come after it when it was killed: under its id, or
// another worker.
func (d *drill) workerLoop(ctx context.Context, random *rand.Rand) {
	id := ""
	for ctx.Err() == nil {
		life, kill := context.WithCancelCause(ctx)
		w := &worker{id: id, instance: store.NewID(), kill: kill}
		d.runWorker(life, w, random)
		kill(nil)
		if ctx.Err() != nil {
			d.unregister(ctx, w)
		}
		if id = w.id; random.IntN(2) == 0 {
			id = ""
		}
		process.Pause(ctx, time.Duration(random.Int64N(int64(2*time.Second))))
	}
}

// runWorker takes builds until ctx ends.
func (d *drill) runWorker(ctx context.Context, w *worker, random *rand.Rand) {
	begun := time.Now()
	if d.retry(ctx, "register", func(ctx context.Context) error {
		err := d.register(ctx, w)
		if store.CodeOf(err) == store.DuplicateWorker && time.Since(begun) > 2*store.WorkerSilence {
			w.id = "" // faults have kept takt from knowing who is silent
		}
		return err
	}) != nil {
		return
	}
	d.ledger.join(w)
	for ctx.Err() == nil {
		var reply api.PollReply
		var sent time.Time
		if d.retry(ctx, "poll", func(ctx context.Context) (err error) {
			sent = time.Now()
			reply, err = d.site.client.Poll(ctx, client.Poll{Token: w.token, WorkerID: w.id, Instance: w.instance, Wait: 5 * time.Second, Active: []string{}})
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
		if reply.Job != nil && d.ledger.assign(reply.Job.ID, w, sent) {
			d.build(ctx, w, *reply.Job, time.Duration(random.Int64N(int64(1500*time.Millisecond))))
		}
	}
}

func (d *drill) register(ctx context.Context, w *worker) error {
	reply, err := d.site.client.Register(ctx, api.Register{ID: w.id, Instance: w.instance, Name: "drill", Capabilities: []byte("{}"), ActiveBuilds: []string{}})
	if err == nil {
		w.id, w.token = reply.ID, reply.AccessToken
	}
	return err
}

// unregister ends a worker. A failure leaves a worker that is offline later.
func (d *drill) unregister(ctx context.Context, w *worker) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_, _ = client.Call(ctx, d.site.client, api.DeleteWorker, api.DeleteWorkerIn{WorkerPath: api.WorkerPath{ID: api.WorkerID(w.id)}})
}

// build fetches a source, works for so long and delivers the result, with a beat each
// half second.
func (d *drill) build(ctx context.Context, w *worker, job api.Job, work time.Duration) {
	held := client.Held{BuildID: job.ID, WorkerID: w.id, Instance: w.instance, Attempt: job.Attempt}
	holding, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	beating, rest := context.WithCancelCause(holding)
	var beats sync.WaitGroup
	beats.Go(func() { d.heartbeat(beating, w, held, stop) })
	source, err := d.fetch(holding, func(ctx context.Context, to client.Target) error {
		return d.callAsHolder(ctx, w, "source of "+job.ID, func(ctx context.Context) error {
			_, err := d.site.client.Source(ctx, held, to, client.FetchOptions{Retry: client.Retry{Attempts: 1}})
			return err
		})
	})
	process.Pause(holding, work)
	rest(nil) // a beat may be refused once the result is taken; uploads are beats too
	beats.Wait()
	if err != nil || holding.Err() != nil {
		return
	}
	data, err := unpack(source)
	if err != nil {
		d.ledger.violation("the source of %s is damaged: %v", job.ID, err)
		return
	}
	result := client.Bytes(data)
	err = d.callAsHolder(holding, w, "result of "+job.ID, func(ctx context.Context) error {
		_, err := d.site.client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &result})
		return err
	})
	if err == nil {
		d.ledger.deliver(w)
	}
}

// callAsHolder makes a call for a build that w holds. A refusal because it no longer does is
// right if it was silent.
func (d *drill) callAsHolder(ctx context.Context, w *worker, what string, call func(context.Context) error) (err error) {
	_ = d.retry(ctx, what, func(ctx context.Context) error {
		err = call(ctx)
		if slices.Contains([]store.Code{store.NotAssigned, store.StaleAttempt, store.Conflict}, store.CodeOf(err)) {
			d.ledger.revoked(what, w)
			return nil
		}
		return err
	})
	return err
}

// heartbeat sends beats until ctx ends, or calls stop because the build was taken away.
func (d *drill) heartbeat(ctx context.Context, w *worker, held client.Held, stop context.CancelCauseFunc) {
	for ctx.Err() == nil {
		var reply api.HeartbeatReply
		var sent time.Time
		err := d.callAsHolder(ctx, w, "beat of "+held.BuildID, func(ctx context.Context) (err error) {
			sent = time.Now()
			reply, err = d.site.client.Heartbeat(ctx, held, nil)
			return err
		})
		switch {
		case err == nil && !reply.Cancelled:
			d.ledger.heartbeat(w, sent)
		case err == nil:
			d.ledger.revoked(held.BuildID, w)
			stop(errRevoked)
			return
		case ctx.Err() == nil:
			stop(errRevoked)
			return
		}
		process.Pause(ctx, 500*time.Millisecond)
	}
}

var errRevoked = fmt.Errorf("the build was taken away")
