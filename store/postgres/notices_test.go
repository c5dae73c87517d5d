package postgres_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// keysOf returns the names of a JSON object's fields.
func keysOf(t *testing.T, object json.RawMessage) []string {
	t.Helper()
	fields := map[string]any{}
	require.NoError(t, json.Unmarshal(object, &fields))
	return slices.Sorted(maps.Keys(fields))
}

// Each change of a state makes one notice for each subscription that it matches, in its
// transaction, and the notice looks as docs/notices.md shows it.
func TestNoticesOfEachEvent(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), storetest.New(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := db.Pool.Exec(ctx, sql, args...)
		require.NoError(t, err, sql)
	}
	taken := func() (events map[string][]string, data map[string]json.RawMessage) {
		t.Helper()
		rows := must(db.Pool.Query(ctx, `DELETE FROM river_job WHERE kind = 'notice' AND queue = 'notices'
			RETURNING args->>'subscription', args->'body'->>'type', args->'body'->'data'`))(t)
		events, data = map[string][]string{}, map[string]json.RawMessage{}
		var s, event string
		var content json.RawMessage
		must(pgx.ForEachRow(rows, []any{&s, &event, &content}, func() error {
			events[s], data[event] = append(events[s], event), slices.Clone(content)
			return nil
		}))(t)
		return events, data
	}
	exec(`INSERT INTO builds (id, platform, token_hash, submitter, has_inputs) VALUES ('b', 'ios', '', 'ci', true)`)
	exec(`INSERT INTO build_inputs (build, params, facts) SELECT seq, '{"A": "b"}', '{"commit": "abcdef0", "branch": "main", "dirty": true, "remote": "r"}' FROM builds`)
	exec(`INSERT INTO build_labels (build, labels) SELECT seq, '{"team": "app", "n": "1"}' FROM builds`)
	exec(`INSERT INTO workers (id, labels) VALUES ('w', '{"xcode": "16.2", "takt:env": "1"}')`)
	exec(`INSERT INTO worker_details VALUES ('w', 'mac', '{}')`)
	exec(`INSERT INTO deployments (id, request, credential_id) VALUES ('d', '{}', '')`)
	finish := `UPDATE builds SET state = 'failed', worker_id = 'w', error_message = 'exit 1', ended = 'exit:65', started_at = now(), completed_at = now()`
	exec(finish)
	events, _ := taken()
	require.Empty(t, events, "nobody subscribed")

	n := postgres.NewNotices(db.DB)
	for id, filter := range map[string]store.NoticeFilter{
		"all": {}, "team": {Labels: map[string]string{"team": "app"}}, "other": {Labels: map[string]string{"team": "web"}},
		"ios": {Platforms: []store.Platform{"ios"}}, "android": {Platforms: []store.Platform{"android"}}, "failed": {Events: []string{"build.failed"}},
	} {
		if filter.Labels == nil {
			filter.Labels = map[string]string{}
		}
		require.NoError(t, n.Create(ctx, store.Subscription{ID: id, URL: "https://x", NoticeFilter: filter, Secrets: []byte("s")}))
	}
	examples := map[string][]string{} // by the first word of the event
	text, err := os.ReadFile("../../docs/notices.md")
	require.NoError(t, err)
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		var example struct {
			Type string
			Data json.RawMessage
		}
		require.NoError(t, json.Unmarshal([]byte(block[1]), &example))
		examples[example.Type] = keysOf(t, example.Data)
	}
	seen := map[string]bool{}
	for _, step := range []struct {
		sql, event string
		to         []string
	}{
		{`UPDATE builds SET state = 'pending', worker_id = NULL`, "build.requeued", []string{"all", "ios", "team"}},
		{`UPDATE builds SET state = 'assigned', worker_id = 'w', attempt = 1`, "", nil},
		{`UPDATE builds SET state = 'building'`, "", nil},
		{finish, "build.failed", []string{"all", "failed", "ios", "team"}},
		{`UPDATE builds SET state = 'failed'`, "", nil},
		{`UPDATE builds SET state = 'completed'`, "build.completed", []string{"all", "ios", "team"}},
		{`UPDATE builds SET state = 'cancelled', ended = 'cancelled', ended_by = 'key ci', ended_why = 'old'`, "build.cancelled", []string{"all", "ios", "team"}},
		{`UPDATE workers SET status = 'building', held = 1`, "", nil},
		{`UPDATE workers SET quarantine = 'k of n'`, "worker.quarantined", []string{"all", "android", "ios"}},
		{`UPDATE workers SET suspect = 'all 5 failures ran here'`, "worker.suspect", []string{"all", "android", "ios"}},
		{`UPDATE workers SET suspect = NULL`, "worker.quarantined", []string{"all", "android", "ios"}},
		{`UPDATE workers SET status = 'offline'`, "worker.offline", []string{"all", "android", "ios"}},
		{`UPDATE workers SET quarantine = NULL`, "", nil},
		{`UPDATE workers SET status = 'idle'`, "worker.back", []string{"all", "android", "ios"}},
		{`UPDATE deployments SET state = 'running'`, "", nil},
		{`UPDATE deployments SET state = 'done', finished_at = now()`, "deployment.completed", []string{"all"}},
		{`UPDATE deployments SET state = 'running'`, "", nil},
		{`UPDATE deployments SET state = 'failed', error = 'x'`, "deployment.failed", []string{"all"}},
	} {
		undone := errors.New("undone")
		require.ErrorIs(t, pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, step.sql)
			require.NoError(t, err)
			return undone
		}), undone)
		exec(step.sql)
		events, data := taken()
		require.Equal(t, step.to, slices.Sorted(maps.Keys(events)), step.sql)
		for s := range events {
			require.Equal(t, []string{step.event}, events[s], step.sql)
		}
		if keys, ok := examples[step.event]; ok {
			require.Equal(t, keys, keysOf(t, data[step.event]), "as docs/notices.md shows %s", step.event)
			delete(examples, step.event)
		}
		require.NotContains(t, string(data[step.event]), "takt:", "labels for features are not shown")
		if step.event == "build.failed" {
			require.Contains(t, string(data[step.event]), `"ended": {"cause": "failed", "exit_code": 65}`)
		}
		if step.event == "build.cancelled" {
			require.Contains(t, string(data[step.event]), `"ended": {"by": "key ci", "why": "old", "cause": "cancelled"}`)
		}
		if step.event == "build.completed" {
			require.NotContains(t, string(data[step.event]), "ended")
		}
		if step.event != "" {
			require.Contains(t, string(text), "`"+step.event+"`")
			seen[step.event] = true
		}
	}
	require.NoError(t, postgres.NewQueue(db.DB, postgres.QueueConfig{}).NoteFull(ctx, store.QueueRoom{Limit: 1, Pending: 2}))
	events, data := taken()
	require.Equal(t, map[string][]string{"all": {"queue.full"}}, events, "it has no platform and no labels")
	require.Equal(t, examples["queue.full"], keysOf(t, data["queue.full"]))
	delete(examples, "queue.full")
	seen["queue.full"] = true
	require.ElementsMatch(t, store.NoticeEvents(), slices.Collect(maps.Keys(seen)))
	require.Empty(t, examples)
}
