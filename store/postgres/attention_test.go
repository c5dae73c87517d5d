package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// Of what is acknowledged no notice tells, until it ends.
func TestAcknowledgedWorkersMakeNoNotices(t *testing.T) {
	t.Parallel()
	ctx, b := t.Context(), setup(t)
	d := postgres.NewDashboard(b.DB)
	mini, other := b.worker(), b.worker()
	b.exec(`INSERT INTO notice_subscriptions (id, url, events, platforms, labels, github, secrets, created_by) VALUES ('n', 'http://x', '{}', '{}', '{}', false, '', '')`)
	goes := func(w *client) {
		b.exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, w.id)
		b.exec(`UPDATE workers SET status = 'idle' WHERE id = $1`, w.id)
		b.exec(`UPDATE workers SET quarantine = 'x' WHERE id = $1`, w.id)
		b.exec(`UPDATE workers SET quarantine = NULL WHERE id = $1`, w.id)
	}
	told := func(w *client) (n int) {
		n = b.count(`SELECT count(*) FROM river_job WHERE args->'body'->'data'->>'id' = $1`, w.id)
		b.exec(`DELETE FROM river_job`)
		return n
	}
	require.NoError(t, d.Acknowledge(ctx, "offline", []string{mini.id, "another"}, "ana", "new disk", time.Hour))
	goes(mini)
	require.Equal(t, 1, told(mini), "that it is quarantined")
	goes(other)
	require.Equal(t, 2, told(other), "quarantined, and back")

	b.exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, mini.id)
	all := must(d.Acknowledged(ctx))(t)
	require.Len(t, all, 2)
	at := all[0].At
	require.WithinDuration(t, at.Add(time.Hour), all[0].Until, time.Millisecond)
	all[0].At, all[0].Until = time.Time{}, time.Time{}
	if all[0].Subject != mini.id {
		all[0], all[1] = all[1], all[0]
		all[0].At, all[0].Until = time.Time{}, time.Time{}
	}
	require.Equal(t, store.Acknowledgement{Kind: "offline", Subject: mini.id, By: "ana", Reason: "new disk", State: "offline", Name: mini.find().Name}, all[0])

	require.NoError(t, d.Acknowledge(ctx, "offline", []string{mini.id}, "ben", "longer", 2*time.Hour))
	require.Len(t, must(d.Acknowledged(ctx))(t), 2, "in place of the one before")
	require.NoError(t, d.Unacknowledge(ctx, "offline", []string{"another"}))
	require.Equal(t, store.NotFound, store.CodeOf(d.Unacknowledge(ctx, "offline", []string{"another"})))
	b.exec(`UPDATE acknowledgements SET until = now() - interval '1 s'`)
	require.Empty(t, must(d.Acknowledged(ctx))(t))
	told(mini)
	goes(mini)
	require.NotZero(t, told(mini), "it is over")
	require.NoError(t, d.Acknowledge(ctx, "full", []string{""}, "ana", "x", time.Hour))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM acknowledgements`), "what is over is removed")
	b.exec(`INSERT INTO acknowledgements SELECT 'k', n, '', '', now(), now() + interval '1 h' FROM generate_series(2, $1::int) n`, store.MaxAcknowledged)
	require.Equal(t, store.Conflict, store.CodeOf(d.Acknowledge(ctx, "s3", []string{""}, "ana", "x", time.Hour)))
	require.NoError(t, d.Unacknowledge(ctx, "k", nil), "all of a kind")
	require.Len(t, must(d.Acknowledged(ctx))(t), 1)
}

func TestTroublesAreWhatIsNotDeliveredExpiresOrDiffers(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), storetest.New(t)
	d := postgres.NewDashboard(db.DB)
	exec := func(sql string) {
		t.Helper()
		_, err := db.Pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
	require.Empty(t, must(d.Troubles(ctx))(t).Notices)
	exec(`INSERT INTO notice_subscriptions (id, url, events, platforms, labels, github, secrets, created_by, disabled) VALUES
		('fails', 'http://a', '{}', '{}', '{}', false, '', '', NULL), ('well', 'http://b', '{}', '{}', '{}', false, '', '', NULL),
		('gone', 'http://c', '{}', '{}', '{}', false, '', '', 'its receiver answered 410 Gone'), ('off', 'http://d', '{}', '{}', '{}', false, '', '', 'an operator disabled it')`)
	exec(`INSERT INTO river_job (kind, queue, state, max_attempts, args, errors, attempted_at, finalized_at)
		SELECT 'notice', 'notices', s.state::river_job_state, 11, jsonb_build_object('subscription', s.id),
			CASE WHEN s.error <> '' THEN ARRAY[jsonb_build_object('error', 'before'), jsonb_build_object('error', s.error)] END, now() - s.ago::interval, CASE WHEN s.state = 'discarded' THEN now() END
		FROM (VALUES ('fails', 'retryable', 'it answered 500', '1 s'), ('fails', 'available', 'older', '1 min'), ('fails', 'discarded', 'oldest', '1 h'),
			('fails', 'available', '', '0'), ('well', 'available', '', '0'), ('off', 'discarded', 'x', '0')) s(id, state, error, ago)`)
	exec(`INSERT INTO access_keys (name, digest, scopes, created_by, expires_at, last_used_at, revoked_at) VALUES
		('soon', '1', '{submit}', '', now() + interval '2 d', NULL, NULL), ('later', '2', '{submit}', '', now() + interval '20 d', now(), NULL),
		('over', '3', '{submit}', '', now() - interval '1 h', now() - interval '2 h', NULL), ('unused', '4', '{submit}', '', now() - interval '1 h', NULL, NULL),
		('revoked', '5', '{submit}', '', now() + interval '1 h', now(), now()), ('token', '6', '{enroll}', '', now() + interval '1 h', NULL, NULL)`)
	exec(`INSERT INTO workers (id, status) VALUES ('a', 'idle'), ('b', 'building'), ('c', 'idle'), ('d', 'offline')`)
	exec(`INSERT INTO worker_details VALUES ('a', 'a', '{"version": "0.1.0"}'), ('b', 'b', '{"version": "0.1.0"}'), ('c', 'c', '{"agentVersion": "7"}'), ('d', 'd', '{"version": "0.0.9"}')`)
	for _, name := range []string{"takt listener", "takt listener 0.2.0", "takt listener 0.2.0", "takt"} {
		conn := must(db.Pool.Acquire(ctx))(t)
		t.Cleanup(conn.Release)
		_, err := conn.Exec(ctx, `SELECT set_config('application_name', $1, false)`, name)
		require.NoError(t, err)
	}
	got := must(d.Troubles(ctx))(t)
	require.Len(t, got.Notices, 2)
	fails := got.Notices[0]
	require.WithinDuration(t, time.Now(), fails.Since, time.Minute)
	fails.Since = time.Time{}
	require.Equal(t, store.FailingNotices{ID: "fails", URL: "http://a", Failing: 2, Dead: 1, Error: "it answered 500"}, fails)
	require.Equal(t, "its receiver answered 410 Gone", got.Notices[1].Disabled)
	require.Len(t, got.Keys, 2)
	require.Equal(t, "over", got.Keys[0].Name)
	require.Equal(t, "soon", got.Keys[1].Name)
	require.Equal(t, map[string]int{"0.1.0": 2, "": 1}, got.Workers)
	require.Equal(t, []string{"", "0.2.0"}, got.Controllers)
	require.Equal(t, 3, must(d.Controllers(ctx))(t))
}
