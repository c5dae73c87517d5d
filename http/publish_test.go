package http_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// Every change that this server commits is published once, and nothing else.
func TestPublishTellsEachChangeOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	expect := func(builds []store.BuildUpdate, workers ...store.WorkerUpdate) {
		t.Helper()
		gotBuilds, gotWorkers := b.published.take()
		require.Equal(t, builds, gotBuilds)
		require.Equal(t, workers, gotWorkers)
	}
	updates := func(u ...store.BuildUpdate) []store.BuildUpdate { return u }

	s := b.submit()
	expect(updates(store.BuildUpdate{BuildID: s.ID, State: store.Pending, Platform: store.IOS}))
	w := b.register("w")
	expect(nil, store.WorkerUpdate{WorkerID: w.ID, Status: store.Idle})
	p := b.poll(w.AccessToken)
	expect(nil) // the queue's own event tells

	logs := func() {
		b.json("POST", "/api/builds/"+s.ID+"/logs", key("X-Worker-Id", w.ID), `{"level":"info","message":"x"}`)
	}
	logs()
	expect(updates(store.BuildUpdate{BuildID: s.ID, State: store.Building, WorkerID: w.ID}))
	logs()
	b.json("POST", "/api/builds/"+s.ID+"/heartbeat?worker_id="+w.ID, key(), "")
	expect(nil)
	again := decode[api.Registered](t, b.json("POST", "/api/workers/register", key(), `{"id":"`+w.ID+`","name":"w","capabilities":{}}`))
	expect(nil, store.WorkerUpdate{WorkerID: w.ID, Status: store.Busy})
	require.NotEqual(t, p.AccessToken, again.AccessToken)

	require.Equal(t, 200, b.send("POST", "/api/workers/unregister", key("X-Worker-Token", again.AccessToken), "").status)
	expect(updates(store.BuildUpdate{BuildID: s.ID, State: store.Pending, Platform: store.IOS}), store.WorkerUpdate{WorkerID: w.ID, Status: store.Offline})
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)
	expect(updates(store.BuildUpdate{BuildID: s.ID, State: store.Completed, Platform: store.IOS, WorkerID: w.ID}))
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)
	expect(nil) // a repeat changes nothing

	s = b.submit()
	require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)
	require.Equal(t, 400, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)
	expect(updates(
		store.BuildUpdate{BuildID: s.ID, State: store.Pending, Platform: store.IOS},
		store.BuildUpdate{BuildID: s.ID, State: store.Cancelled, Platform: store.IOS},
	))
}
