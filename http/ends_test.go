package http_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// Who cancelled a build and why is for everyone who may see it, in members of their own; what old
// clients compare stays.
func TestACancelSaysWhoAndWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ci := shownKey(b.named("ci", store.ScopeSubmit).Key)
	one, other := b.by(ci).ID, b.submit().ID
	labelled := []string{b.labelled(key(), `{"pr":"7"}`), b.labelled(key(), `{"pr":"7"}`)}
	require.Nil(t, b.status(one).Ended)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+one+"/cancel?reason=superseded+by+772", ci.headers(), "").status)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+other+"/cancel", key(), "").status)
	b.several(key("X-Admin-Key", adminKey), "cancel?label=pr=7&reason=closed")
	for id, want := range map[string]api.Ended{
		one: {Cause: "cancelled", By: "key ci", Why: "superseded by 772"}, other: {Cause: "cancelled", By: "api"},
		labelled[0]: {Cause: "cancelled", By: "admin", Why: "closed"}, labelled[1]: {Cause: "cancelled", By: "admin", Why: "closed"},
	} {
		status := b.status(id)
		require.Equal(t, want, *status.Ended)
		require.Equal(t, []string{"failed", store.MessageCancelled}, []string{status.Status, *status.ErrorMessage})
		item := decode[api.BuildItem](t, b.send("GET", "/api/builds/"+id, key(), ""))
		require.Equal(t, []any{want, store.MessageCancelled}, []any{*item.Ended, *item.ErrorMessage})
		log := decode[api.Logs](t, b.send("GET", "/api/builds/"+id+"/logs", key(), "")).Logs
		require.Equal(t, []string{"Build cancelled", want.By, want.Why}, []string{log[1].Message, log[1].By, log[1].Why})
		steps := decode[api.BuildTimeline](t, b.send("GET", "/api/builds/"+id+"/timeline", key(), "")).Steps
		require.Equal(t, []string{"Cancelled by " + want.By, want.Why}, []string{steps[1].Title, steps[1].Text})
	}
	failed, w := b.assigned()
	require.Equal(t, 200, b.giveUp(failed.ID, w.ID, "build").status)
	require.Equal(t, "failed", b.status(failed.ID).Ended.Cause)
}

// A worker that writes lines is told of a cancel with the next ones, and these are kept. It costs no
// statement more than a line of a build that runs.
func TestAPostOfLinesSaysThatTheBuildWasCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	post := func() string {
		r := b.json("POST", "/api/builds/"+s.ID+"/logs", key("X-Worker-Id", w.ID), `{"logs":[{"level":"info","message":"compiling"}]}`)
		require.Equal(t, 200, r.status, r.body)
		return r.body
	}
	require.Equal(t, `{"success":true,"count":1}`, post(), "as before")
	require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)
	require.Equal(t, `{"success":true,"count":1,"cancelled":true}`, post())
	require.Equal(t, []string{"compiling", "Build cancelled", "compiling"}, b.messages(s.ID)[2:])
	done, w2 := b.assigned()
	require.Equal(t, 200, b.finish(done.ID, w2.ID, "app").status)
	r := b.json("POST", "/api/builds/"+done.ID+"/logs", key("X-Worker-Id", w2.ID), `{"level":"info","message":"late"}`)
	require.Equal(t, `{"success":true}`, r.body, "a completed build needs no stop")
}

// A build and its retries lead to each other.
func TestARetryLeadsToItsBuildAndBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old, w := b.assigned()
	require.Equal(t, 200, b.giveUp(old.ID, w.ID, "build").status)
	again := decode[api.Retried](t, b.send("POST", "/api/builds/"+old.ID+"/retry", key(), "")).ID
	require.Equal(t, []string{again}, b.status(old.ID).Retries)
	require.Empty(t, b.status(old.ID).RetryOf)
	require.Equal(t, old.ID, b.status(again).RetryOf)
	list := decode[[]api.BuildItem](t, b.send("GET", "/api/builds", key(), ""))
	require.Equal(t, []string{old.ID, ""}, []string{list[0].RetryOf, list[1].RetryOf})

	steps := decode[api.BuildTimeline](t, b.send("GET", "/api/builds/"+old.ID+"/timeline", key(), "")).Steps
	require.Equal(t, []string{"failed", "retried"}, []string{steps[2].Kind, steps[3].Kind}, "in the order in which it happened")
	require.Equal(t, []string{"Retried as build " + again, again}, []string{steps[3].Title, steps[3].BuildID})
	steps = decode[api.BuildTimeline](t, b.send("GET", "/api/builds/"+again+"/timeline", key(), "")).Steps
	require.Equal(t, []string{"Submitted as a retry of build " + old.ID, old.ID}, []string{steps[0].Title, steps[0].BuildID})
}

func TestWaitingCountsFromTheReturnToTheQueue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, _ := b.assigned()
	require.Nil(t, b.status(s.ID).WaitingSince)
	_, err := b.pool.Exec(t.Context(), `UPDATE builds SET submitted_at = now() - interval '23 min'`)
	require.NoError(t, err)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/requeue", key("X-Admin-Key", adminKey), `{"reason":"no output"}`).status)
	require.WithinDuration(t, time.Now(), b.status(s.ID).WaitingSince.Time(), time.Minute)
	item := decode[api.BuildItem](t, b.send("GET", "/api/builds/"+s.ID, key(), ""))
	since, err := time.Parse(time.RFC3339, item.WaitingSince)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), since, time.Minute)
	why := decode[api.BuildWhy](t, b.send("GET", "/api/builds/"+s.ID+"/why", key(), ""))
	require.Equal(t, b.status(s.ID).WaitingSince, why.WaitingSince)
}
