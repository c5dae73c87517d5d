package http_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

func (b *fixture) worker(id string) api.Worker {
	b.t.Helper()
	r := b.send("GET", "/api/workers/"+id, key(), "")
	require.Equal(b.t, 200, r.status, r.body)
	return decode[api.Worker](b.t, r)
}

func TestFleetIsListed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	requireBody(t, `{"workers":[],"total":0}`, b.send("GET", "/api/workers", key(), ""))
	s, w := b.assigned()
	other := b.register("other")
	b.json("POST", "/api/workers/register", key(), `{"id":"`+w.ID+`","name":"w","capabilities":{"platforms":["ios"]}}`)
	require.Equal(t, 200, b.telemetry(s.ID, w.ID, `{"type":"heartbeat","timestamp":"t","data":{"heartbeat_count":1,"stage":"building",
		"metrics":{"cpu_percent":50,"memory_mb":100,"disk_percent":40,"processes":7},"uptime_seconds":61}}`).status)
	require.Equal(t, 200, b.diagnose(w.ID, "healthy").status)

	r := b.send("GET", "/api/workers", key(), "")
	require.Equal(t, 200, r.status)
	list := decode[api.WorkerList](t, r)
	require.Equal(t, 2, list.Total)
	first := list.Workers[0]
	require.Equal(t, w.ID, first.ID)
	require.Equal(t, "building", first.Status)
	require.Equal(t, []string{s.ID}, first.Builds)
	require.Equal(t, s.ID, first.Telemetry.BuildID)
	require.InDelta(t, 50, *first.Telemetry.CPUPercent, 0)
	require.Equal(t, "building", first.Telemetry.Stage)
	require.Equal(t, "healthy", first.Diagnostics.Status)
	second := list.Workers[1]
	require.Equal(t, other.ID, second.ID)
	require.Nil(t, second.Telemetry)
	require.Nil(t, second.Diagnostics)
	require.Contains(t, r.body, `"platforms":[]`)

	r = b.send("GET", "/api/workers/"+w.ID, key(), "")
	requireShape(t, "worker", r)
	require.Equal(t, first, decode[api.Worker](t, r))
	for query, n := range map[string]int{"status=idle": 1, "status=building": 1, "status=offline": 0, "limit=1": 1} {
		require.Len(t, decode[api.WorkerList](t, b.send("GET", "/api/workers?"+query, key(), "")).Workers, n, query)
	}
}

func TestWorkersAreDrainedAndResumed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	b.published.take()
	for range 2 {
		r := b.send("POST", "/api/workers/"+w.ID+"/drain", key(), "")
		require.Equal(t, 200, r.status, r.body)
		require.True(t, decode[api.Worker](t, r).Draining)
	}
	_, workers := b.published.take()
	require.Equal(t, store.WorkerUpdate{WorkerID: w.ID, Status: store.Busy, Draining: true}, workers[0])
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)
	next := b.submit()
	p := b.poll(b.again(t, w.ID).AccessToken)
	require.Nil(t, p.Job, "a new registration does not end it")
	r := b.send("POST", "/api/workers/"+w.ID+"/resume", key(), "")
	require.False(t, decode[api.Worker](t, r).Draining)
	require.Contains(t, b.queue.able, w.ID, "its parked poll may be woken again")
	require.Equal(t, next.ID, b.poll(p.AccessToken).Job.ID)
}

// giveUp reports that a build failed by fault.
func (b *fixture) giveUp(build, worker, fault string) reply {
	return b.form("/api/workers/upload", key(), part{name: "build_id", content: build}, part{name: "worker_id", content: worker},
		part{name: "success", content: "false"}, part{name: "error_message", content: "podman: exec format error"}, part{name: "fault", content: fault})
}

func TestAWorkerThatCantRunBuildsIsQuarantined(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	b.published.take()
	r := b.giveUp(s.ID, w.ID, "engine")
	require.Equal(t, 200, r.status, r.body)
	requireBody(t, `{"success":true,"status":"pending","message":"Build is pending again"}`, r)
	builds, workers := b.published.take()
	require.Equal(t, []store.BuildUpdate{{BuildID: s.ID, State: store.Pending, Platform: store.IOS}}, builds)
	require.Equal(t, []store.WorkerUpdate{{WorkerID: w.ID, Status: store.Idle}}, workers)
	requireBody(t, `{"success":true,"status":"pending","message":"Build is pending again"}`, b.giveUp(s.ID, w.ID, "engine"))
	builds, workers = b.published.take()
	require.Empty(t, builds, "a repeat")
	require.Empty(t, workers)
	require.Contains(t, b.messages(s.ID), "Worker "+w.ID+" gave this build back (engine: podman: exec format error), build is pending again")

	shown := b.worker(w.ID)
	require.Equal(t, []string{"idle", "quarantined"}, []string{shown.Status, shown.State})
	require.Equal(t, "1 of the last 1 attempts ended by this worker's own fault. The last one (engine): podman: exec format error", shown.Quarantine.Reason)
	require.NotEmpty(t, shown.Quarantine.Until)
	r = b.send("POST", "/api/workers/"+w.ID+"/resume", key(), "")
	require.Equal(t, "idle", decode[api.Worker](t, r).State)
	require.Nil(t, decode[api.Worker](t, r).Quarantine)
}

func TestAFailureOfAnyOtherKindIsTheBuilds(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"build", "", "of a later version"} {
		b := setup(t)
		s, w := b.assigned()
		requireBody(t, `{"success":true,"status":"failed","message":"Build marked as failed"}`, b.giveUp(s.ID, w.ID, fault))
		require.Equal(t, "failed", b.status(s.ID).Status)
		require.Equal(t, "idle", b.worker(w.ID).State)
	}
}

func TestDeletedWorkerIsGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	require.Equal(t, 200, b.diagnose(w.ID, "warning").status)
	require.Equal(t, 200, b.telemetry(s.ID, w.ID, `{"type":"cpu_snapshot","timestamp":"t","data":{"cpu_percent":50,"memory_mb":1}}`).status)
	b.published.take()
	r := b.send("DELETE", "/api/workers/"+w.ID, key(), "")
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "unregistered", r)
	require.Equal(t, 1, decode[api.Unregistered](t, r).BuildsReassigned)
	builds, workers := b.published.take()
	require.Equal(t, []store.BuildUpdate{{BuildID: s.ID, State: store.Pending, Platform: store.IOS}}, builds)
	require.Equal(t, []store.WorkerUpdate{{WorkerID: w.ID, Status: store.Offline, Deleted: true}}, workers)

	require.Equal(t, "pending", b.status(s.ID).Status)
	require.Equal(t, 401, b.send("GET", "/api/workers/poll", key("X-Worker-Token", w.AccessToken), "").status, "its token died")
	require.Equal(t, 404, b.send("GET", "/api/diagnostics/"+w.ID, key(), "").status)
	require.Equal(t, 404, b.finish(s.ID, w.ID, "app").status)
	require.Equal(t, "registered", b.again(t, w.ID).Status)
}

func TestWorkerStatsAreWhatTheMenuReads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.register("Mac mini")
	require.Equal(t, 200, b.finish(b.submit().ID, w.ID, "app").status)
	r := b.form("/api/workers/upload", key(), part{name: "build_id", content: b.submit().ID},
		part{name: "worker_id", content: w.ID}, part{name: "success", content: "false"})
	require.Equal(t, 200, r.status)
	_, err := b.pool.Exec(t.Context(), `UPDATE workers SET registered_at = now() - interval '3 days 14 hours 5 min'`)
	require.NoError(t, err)
	r = b.send("GET", "/api/workers/"+w.ID+"/stats", key(), "")
	require.Equal(t, 200, r.status)
	requireShape(t, "worker_stats", r)
	require.Equal(t, `{"totalBuilds":2,"successfulBuilds":1,"failedBuilds":1,"workerName":"Mac mini","status":"idle","uptime":"3d 14h"}`, r.body)
}

func TestFailAndHeartbeatByBuildAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	body := `{"build_id":"` + s.ID + `"}`
	r := b.json("POST", "/api/workers/heartbeat", key(), body)
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "beat_reply", r)
	require.Equal(t, "building", b.status(s.ID).Status)

	r = b.json("POST", "/api/workers/fail", key(), `{"build_id":"`+s.ID+`","error":"exit status 65"}`)
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "uploaded", r)
	st := b.status(s.ID)
	require.Equal(t, "failed", st.Status)
	require.Equal(t, "exit status 65", *st.ErrorMessage)
	require.Equal(t, 1, b.worker(w.ID).Failed)
	require.Equal(t, 200, b.json("POST", "/api/workers/fail", key(), body).status, "a repeat changes nothing")
	require.Equal(t, 1, b.worker(w.ID).Failed)
	require.Contains(t, b.json("POST", "/api/workers/heartbeat", key(), body).body, `"cancelled":true`)
}
