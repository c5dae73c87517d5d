package http_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/http/edge/edgetest"
	"takt/store"
)

// The ends of a build, and what their reply is without the worker's next build.
const (
	succeeded = `{"success":true,"status":"success","message":"Result uploaded successfully"}`
	failed    = `{"success":true,"status":"failed","message":"Build marked as failed"}`
)

// ends reports the end of a build, with query behind the path.
func (b *fixture) ends(how, query string, header map[string]string, build, worker string) reply {
	b.t.Helper()
	id, who, ok := uploadParts(build, worker, strconv.FormatBool(how != "upload of a failure"))
	switch how {
	case "failure":
		return b.json("POST", "/api/workers/fail"+query, header, `{"build_id":"`+build+`","error":"exit 1"}`)
	case "result":
		return b.form("/api/workers/result"+query, header, id, who, ok, part{"result", "a", "app"})
	default:
		return b.form("/api/workers/upload"+query, header, id, who, ok, part{"result", "a", "app"})
	}
}

func TestTheEndOfABuildBringsTheNextOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for how, said := range map[string]string{"upload": succeeded, "result": succeeded, "upload of a failure": failed, "failure": failed} {
		first, w := b.assigned()
		second, third := b.submit(part{name: "priority", content: "9"}), b.submit(part{name: "priority", content: "8"})
		header := func() map[string]string { return key("X-Worker-Token", w.AccessToken) }

		r := b.ends(how, "?next=1", header(), first.ID, w.ID)
		require.Equal(t, 200, r.status, "%s: %s", how, r.body)
		requireShape(t, "uploaded_next", r)
		got := decode[api.Uploaded](t, r)
		require.Contains(t, said, `"status":"`+got.Status+`"`, how)
		require.Equal(t, second.ID, got.Job.ID, how)
		require.Equal(t, 1, got.Job.Attempt)
		require.NotEqual(t, w.AccessToken, got.AccessToken)
		require.True(t, store.BuildState(b.status(first.ID).Status).Final(), how)

		// The reply was lost: the repeat changes nothing and brings the same build, as often as it takes.
		for range 2 {
			again := decode[api.Uploaded](t, b.ends(how, "?next=1&active="+first.ID, header(), first.ID, w.ID))
			require.Equal(t, got.Status, again.Status, how)
			require.Equal(t, got.Job, again.Job, how)
			got = again
		}
		w.AccessToken = got.AccessToken
		got = decode[api.Uploaded](t, b.ends(how, "?next=1", header(), second.ID, w.ID))
		require.Equal(t, third.ID, got.Job.ID, how)
		w.AccessToken = got.AccessToken
		r = b.ends(how, "?next=1&wait=60", header(), third.ID, w.ID) // at once
		got = decode[api.Uploaded](t, r)
		require.Nil(t, got.Job, how)
		require.NotContains(t, r.body, "job")
		require.Nil(t, b.poll(got.AccessToken).Job, "its token is good")
	}
}

// Whatever is wrong with the poll, the build's end is recorded and the reply is as without it.
func TestTheEndOfABuildDoesNotDependOnTheNextOne(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	b := setupWith(t, func(d *takthttp.Deps) { d.Queue = breaking{d.Queue, &broken} }, func(c *takthttp.Config) { c.PollRate = 2 })
	other := b.register("other")
	for name, c := range map[string]struct {
		query  string
		header func(token string) []string
		before func(w api.Registered)
	}{
		"no token":          {header: func(string) []string { return nil }},
		"not asked for":     {query: "?next=0"},
		"neither yes or no": {query: "?next=maybe"},
		"a bad list":        {query: "?next=1&active=/"},
		"a forged token":    {header: func(token string) []string { return []string{"X-Worker-Token", "B" + token[1:]} }},
		"a superseded token": {before: func(w api.Registered) {
			require.Equal(b.t, 200, b.json("POST", "/api/workers/register", key(), `{"id":"`+w.ID+`","name":"w","capabilities":{}}`).status)
		}},
		"another worker's token": {header: func(string) []string { return []string{"X-Worker-Token", other.AccessToken} }},
		"too many polls": {before: func(w api.Registered) {
			for b.send("GET", "/api/workers/poll", key("X-Worker-Token", w.AccessToken), "").status != 429 {
			}
		}},
		"a queue that is away": {before: func(api.Registered) { broken.Store(true) }},
	} {
		for how, said := range map[string]string{"upload": succeeded, "failure": failed} {
			build, w := b.assigned()
			next := b.submit()
			if c.query == "" {
				c.query = "?next=1"
			}
			header := []string{"X-Worker-Token", w.AccessToken}
			if c.header != nil {
				header = c.header(w.AccessToken)
			}
			if c.before != nil {
				c.before(w)
			}
			r := b.ends(how, c.query, key(header...), build.ID, w.ID)
			broken.Store(false)
			require.Equal(t, 200, r.status, "%s, %s: %s", name, how, r.body)
			require.Equal(t, said, r.body, "%s, %s", name, how)
			require.Empty(t, r.header.Get("Retry-After"))
			require.NotEqual(t, "assigned", b.status(build.ID).Status, name)
			require.Equal(t, "pending", b.status(next.ID).Status, name)
			require.Equal(t, 200, b.json("POST", "/api/builds/"+next.ID+"/cancel", key(), "").status)
		}
	}
}

// breaking is a queue that may be away.
type breaking struct {
	takthttp.Queue
	away *atomic.Bool
}

func (q breaking) Arrive(ctx context.Context, r store.PollRequest, wait time.Duration) (store.AwaitReply, error) {
	if q.away.Load() {
		return nil, store.NewUnavailable("Queue is restarting, try again", nil)
	}
	return q.Queue.Arrive(ctx, r, wait)
}

// A build that did not end brings no next one. If it may have ended, the repeat with the same
// token does.
func TestAnEndThatIsRefusedOrUncertainBringsNoBuild(t *testing.T) {
	t.Parallel()
	uncertain := new(sometimes)
	b := setupWith(t, func(d *takthttp.Deps) { uncertain.Builds, d.Builds = d.Builds, uncertain })
	build, w := b.assigned()
	next := b.submit()
	header := func() map[string]string { return key("X-Worker-Token", w.AccessToken) }
	require.Equal(t, 400, b.form("/api/workers/upload?next=1", header(), part{name: "build_id", content: build.ID}).status)
	require.Equal(t, 404, b.ends("failure", "?next=1", header(), "nobody", w.ID).status)
	for _, how := range []string{"upload", "failure"} {
		uncertain.unknown.Store(true)
		r := b.ends(how, "?next=1", header(), build.ID, w.ID)
		require.Equal(t, 503, r.status, r.body)
		require.NotContains(t, r.body, "access_token")
		require.Equal(t, "pending", b.status(next.ID).Status)
		require.True(t, store.BuildState(b.status(build.ID).Status).Final(), "it was recorded")
		uncertain.unknown.Store(false)
		for range 2 {
			got := decode[api.Uploaded](t, b.ends(how, "?next=1", header(), build.ID, w.ID))
			require.Equal(t, next.ID, got.Job.ID)
			require.Equal(t, 1, got.Job.Attempt)
		}
		w.AccessToken = decode[api.Uploaded](t, b.ends(how, "?next=1", header(), build.ID, w.ID)).AccessToken
		build, next = next, b.submit()
	}
	conflict := "failure"
	require.Equal(t, 200, b.ends("upload", "", key(), build.ID, w.ID).status)
	require.Equal(t, 409, b.ends(conflict, "?next=1", header(), build.ID, w.ID).status)
	require.Equal(t, "pending", b.status(next.ID).Status)
	require.Equal(t, next.ID, b.poll(w.AccessToken).Job.ID, "its token has not moved")
}

// sometimes is a store whose results may be recorded without its knowing.
type sometimes struct {
	takthttp.Builds
	unknown atomic.Bool
}

func (s *sometimes) Finish(ctx context.Context, r store.Result, files ...store.Staged) (store.Finished, error) {
	done, err := s.Builds.Finish(ctx, r, files...)
	if err == nil && s.unknown.Load() {
		err = store.Wrap(store.Unavailable, "away", store.ErrOutcomeUnknown)
	}
	return done, err
}

// slow is a queue whose batches take long. Its requests are counted.
type slow struct {
	takthttp.Queue
	running atomic.Int32
	waited  atomic.Int32 // how many requests ran while a poll waited
	ended   chan error
}

func (q *slow) Do(ctx context.Context, _ store.Work, fn func(context.Context) error) error {
	q.running.Add(1)
	defer q.running.Add(-1)
	return fn(ctx)
}

func (q *slow) Arrive(context.Context, store.PollRequest, time.Duration) (store.AwaitReply, error) {
	return func(ctx context.Context, _ <-chan struct{}) (store.PollReply, error) {
		q.waited.Store(q.running.Load())
		<-ctx.Done()
		q.ended <- context.Cause(ctx)
		return store.PollReply{}, context.Cause(ctx)
	}, nil
}

// The answer to the end of a build waits a little for the batch of the poll, without the
// request's place.
func TestTheNextBuildIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens, q := tokensOf(t), &slow{ended: make(chan error, 1)}
		ln, _ := setupFakeTime(t, func(d *takthttp.Deps) {
			q.Queue, d.Queue, d.Requests, d.Tokens = d.Queue, q, q, tokens
			d.Builds = &instant{build: store.Build{ID: "b", WorkerID: "w", State: store.Building}}
		})
		begun := time.Now()
		r := ln.Dial(t, "").Ask(edgetest.Request("POST /api/workers/fail?next=1", "X-API-Key: "+apiKey, "Content-Type: application/json",
			"X-Worker-Token: "+tokens.Issue(store.WorkerToken{Worker: 7, Counter: 3}), "Content-Length: 16") + `{"build_id":"b"}`)
		require.Equal(t, 200, r.Status, r.Body)
		requireBody(t, failed, reply{body: r.Body})
		require.Equal(t, 2*time.Second, time.Since(begun))
		require.Error(t, <-q.ended)
		require.Zero(t, q.waited.Load(), "it holds no place")
	})
}
