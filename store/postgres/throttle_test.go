package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

const (
	portal = int64(62515)
	lease  = 45 * time.Second
)

// throttled is a test's throttle store with a configuration for actions 1 to 9.
type throttled struct {
	*fixture
	*postgres.Throttle
}

func throttle(t *testing.T, most, period int, unit store.TimeUnit) *throttled {
	t.Helper()
	db := storetest.New(t)
	th := must(postgres.NewThrottle(db.DB))(t)
	b := &throttled{&fixture{Database: db, t: t}, th}
	b.configure(most, period, unit)
	return b
}

func (b *throttled) configure(most, period int, unit store.TimeUnit) {
	b.t.Helper()
	must(b.PutConfig(b.t.Context(), store.ThrottleConfig{PortalID: portal, ActionID: 1, MaxThroughput: most, TimePeriod: period, TimeUnit: unit}))(b.t)
}

func queueOf(workflow int) store.QueueKey {
	return store.QueueKey{PortalID: portal, WorkflowID: fmt.Sprint(workflow), ActionID: 1, Index: "0"}
}

// accept makes n actions durable, named c0, c1, ... from first.
func (b *throttled) accept(key store.QueueKey, first, n int) []store.Acceptance {
	b.t.Helper()
	var actions []store.Action
	for i := first; i < first+n; i++ {
		actions = append(actions, store.Action{Queue: key, CallbackID: fmt.Sprintf("%s-c%d", key.WorkflowID, i), Expires: time.Hour})
	}
	got := must(b.Accept(b.t.Context(), actions))(b.t)
	return got
}

// claimOne is what claim returns if it is all of one call.
type claimOne struct {
	store.Claim
	Queues  []due
	Expired int
}

// due is a store.QueueDue with how long that is from now.
type due struct {
	store.QueueDue
	In time.Duration
}

func (b *throttled) claim(limit int, keys ...store.QueueKey) claimOne {
	b.t.Helper()
	all := b.claims(store.ClaimRequest{Limit: limit, Batch: 100}, keys...)
	one := claimOne{Expired: all.Expired}
	require.LessOrEqual(b.t, len(all.Claims), 1)
	for _, c := range all.Claims {
		one.Claim = c
	}
	for _, q := range all.Queues {
		one.Queues = append(one.Queues, due{q, max(time.Until(q.At), 0)})
	}
	return one
}

func (b *throttled) claims(r store.ClaimRequest, keys ...store.QueueKey) store.Claims {
	b.t.Helper()
	for _, k := range keys {
		r.Queues = append(r.Queues, k.ID())
	}
	r.PortalID, r.Lease, r.MaxLinger = portal, lease, 900*time.Millisecond
	c := must(b.Claim(b.t.Context(), r))(b.t)
	return c
}

func idsOf(c claimOne) (ids []string) {
	for _, a := range c.Actions {
		ids = append(ids, a.CallbackID)
	}
	return ids
}

func testRule() store.FailureRule {
	return store.FailureRule{HoldEvery: 3, GiveUp: 20, Hold: 30 * time.Minute}
}

func (b *throttled) record(o store.Outcome) store.Recorded {
	b.t.Helper()
	o.Rule, o.PortalID = testRule(), portal
	r := must(b.Record(b.t.Context(), o))(b.t)
	return r
}

func TestActionsAreAcceptedOnceAndGetOneJob(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	for _, a := range b.accept(queueOf(1), 0, 3) {
		require.False(t, a.Repeat)
		require.Equal(t, store.ActionWaiting, a.State)
		require.InDelta(t, time.Hour, a.Remaining, float64(time.Second))
	}
	again := b.accept(queueOf(1), 2, 2)
	require.True(t, again[0].Repeat, "it was here before")
	require.Equal(t, store.ActionWaiting, again[0].State)
	require.False(t, again[1].Repeat)
	require.Equal(t, 4, b.count(`SELECT count(*) FROM action_executions`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM river_job WHERE kind = 'throttle' AND state = 'available'`))
	b.exec(`UPDATE river_job SET state = 'completed', finalized_at = now()`)
	require.False(t, b.accept(queueOf(1), 9, 1)[0].Repeat)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM river_job WHERE state = 'available'`), "the queue gets another")
	b.exec(`UPDATE river_job SET state = 'completed', finalized_at = now()`)
	twin := store.Action{Queue: queueOf(1), CallbackID: "twin", Expires: time.Hour}
	twins := must(b.Accept(t.Context(), []store.Action{twin, twin}))(t)
	require.Equal(t, []bool{false, true}, []bool{twins[0].Repeat, twins[1].Repeat})
	require.Equal(t, 6, b.count(`SELECT count(*) FROM action_executions`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM river_job WHERE state = 'available'`), "and another")
}

func TestConcurrentBatchesNeverDoubleNorDeadlock(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	for g := range 8 {
		wg.Go(func() {
			for round := range 20 {
				var actions []store.Action
				for i := range 10 { // each group of four goroutines sends the same ones
					n := (round*10 + i*7) % 50
					actions = append(actions, store.Action{Queue: queueOf((n + g) % 3), CallbackID: fmt.Sprintf("g%d-%d", g%2, n), Expires: time.Hour})
				}
				if _, err := b.Accept(t.Context(), actions); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 100, b.count(`SELECT count(*) FROM action_executions`))
	require.Equal(t, 3, b.count(`SELECT count(*) FROM river_job`))
	require.Zero(t, b.count(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`))
}

func TestBudgetIsSpentOnceAndComesBackOnePeriodAfterTheAnswer(t *testing.T) {
	t.Parallel()
	b := throttle(t, 5, 1, store.Hour)
	b.accept(queueOf(1), 0, 12)
	first := b.claim(3, queueOf(1))
	require.Len(t, first.Actions, 3)
	require.Zero(t, first.Queues[0].In, "there is budget and work")
	second := b.claim(100, queueOf(1))
	require.Len(t, second.Actions, 2)
	require.Empty(t, b.claim(100, queueOf(1)).Actions)

	require.InDelta(t, time.Hour+lease, second.Queues[0].In, float64(2*time.Second), "unanswered: a period after its end")
	b.record(store.Outcome{Claim: first.Number, Done: idsOf(first)})
	none := b.claim(100, queueOf(1))
	require.Empty(t, none.Actions)
	require.InDelta(t, time.Hour, none.Queues[0].In, float64(2*time.Second))

	b.exec(`UPDATE throttle_windows SET ended_at = ended_at - interval '59 minutes 59 seconds' WHERE claim = $1`, first.Number)
	require.Empty(t, b.claim(100, queueOf(1)).Actions)
	b.exec(`UPDATE throttle_windows SET ended_at = ended_at - interval '1 second' WHERE claim = $1`, first.Number)
	require.Len(t, b.claim(100, queueOf(1)).Actions, 3)
}

func TestConcurrentClaimsKeepTheRate(t *testing.T) {
	t.Parallel()
	b := throttle(t, 25, 1, store.Day)
	b.accept(queueOf(1), 0, 200)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				c, err := b.Claim(t.Context(), store.ClaimRequest{PortalID: portal, Queues: []string{queueOf(1).ID()}, Limit: 4, Batch: 3, Lease: lease})
				mu.Lock()
				if err != nil {
					t.Error(err)
				}
				for _, call := range c.Claims {
					for _, a := range call.Actions {
						if seen[a.CallbackID] {
							t.Error("claimed twice")
						}
						seen[a.CallbackID] = true
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 25)
}

func TestAChangedRateAppliesToWhatWaits(t *testing.T) {
	t.Parallel()
	b := throttle(t, 2, 1, store.Day)
	b.accept(queueOf(1), 0, 10)
	c := b.claim(100, queueOf(1))
	b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)})
	require.Empty(t, b.claim(100, queueOf(1)).Actions)
	b.configure(5, 1, store.Day)
	require.Len(t, b.claim(100, queueOf(1)).Actions, 3)
	require.NoError(t, b.DeleteConfig(t.Context(), portal, 1))
	b.exec(`DELETE FROM throttle_windows`)
	require.Len(t, b.claim(100, queueOf(1)).Actions, 5, "what waits keeps the last rate")
	require.Equal(t, store.NotFound, codeOf(b.Config(t.Context(), portal, 1)))
	require.Equal(t, store.NotFound, store.CodeOf(b.DeleteConfig(t.Context(), portal, 1)))
}

func TestAClaimServesItsQueuesInTurn(t *testing.T) {
	t.Parallel()
	b := throttle(t, 100, 1, store.Second)
	b.accept(queueOf(1), 0, 50)
	b.accept(queueOf(2), 0, 2)
	b.accept(queueOf(3), 0, 50)
	c := b.claim(12, queueOf(1), queueOf(2), queueOf(3))
	per := map[string]int{}
	for _, a := range c.Actions {
		per[a.Queue]++
	}
	require.Equal(t, map[string]int{queueOf(1).ID(): 5, queueOf(2).ID(): 2, queueOf(3).ID(): 5}, per, "a long one leaves room for the others")
	require.Equal(t, 3, b.count(`SELECT count(*) FROM throttle_windows`), "each queue pays for its own")
}

func TestEachCallOfAClaimHasBudgetOfItsOwn(t *testing.T) {
	t.Parallel()
	b := throttle(t, 250, 1, store.Hour)
	b.accept(queueOf(1), 0, 400)
	c := b.claims(store.ClaimRequest{Limit: 500, Batch: 100}, queueOf(1))
	require.Len(t, c.Claims, 3)
	numbers, seen := map[int64]bool{}, map[string]bool{}
	for i, call := range c.Claims {
		require.Len(t, call.Actions, []int{100, 100, 50}[i])
		require.Zero(t, call.NotBefore)
		numbers[call.Number] = true
		for _, a := range call.Actions {
			seen[a.CallbackID] = true
		}
	}
	require.Len(t, numbers, 3)
	require.Len(t, seen, 250)
	first := claimOne{Claim: c.Claims[0]}
	b.record(store.Outcome{Claim: first.Number, Done: idsOf(first)})
	require.Equal(t, 100, b.count(`SELECT n FROM throttle_windows WHERE ended_at <= now()`), "it alone is answered")
	second := claimOne{Claim: c.Claims[1]}
	b.record(store.Outcome{Claim: second.Number, Released: idsOf(second), Refund: true})
	require.Equal(t, 150, b.count(`SELECT sum(n) FROM throttle_windows`))
	require.Len(t, b.claim(100, queueOf(1)).Actions, 100, "what was refunded")
}

// Budget that is back in a moment is claimed now, and the call waits for exactly
// as much of it as it needs.
func TestBudgetIsClaimedAheadOfTime(t *testing.T) {
	t.Parallel()
	b := throttle(t, 30, 1, store.Hour)
	b.accept(queueOf(1), 0, 100)
	var spent []claimOne
	for range 3 {
		spent = append(spent, b.claim(10, queueOf(1)))
		last := spent[len(spent)-1]
		b.record(store.Outcome{Claim: last.Number, Done: idsOf(last)})
	}
	for i, in := range []string{"20 seconds", "40 seconds", "10 minutes"} {
		b.exec(`UPDATE throttle_windows SET ended_at = now() - interval '1 hour' + $2::interval WHERE claim = $1`, spent[i].Number, in)
	}
	ahead := store.ClaimRequest{Limit: 15, Batch: 100, Ahead: time.Minute}
	c := b.claims(ahead, queueOf(1))
	require.Len(t, c.Claims, 1)
	require.Len(t, c.Claims[0].Actions, 15)
	require.InDelta(t, 40*time.Second, time.Until(c.Claims[0].NotBefore), float64(5*time.Second), "the tenth of them would have been free before")
	require.True(t, c.Queues[0].Blocked)
	require.LessOrEqual(t, time.Until(c.Queues[0].At), time.Duration(0), "there is more, ahead of time")
	require.Len(t, b.claims(ahead, queueOf(1)).Claims[0].Actions, 5, "no budget is spent twice")
	none := b.claims(ahead, queueOf(1))
	require.Empty(t, none.Claims)
	require.InDelta(t, 9*time.Minute, time.Until(none.Queues[0].At), float64(7*time.Second), "a minute before it is back")
	require.Empty(t, b.claim(100, queueOf(1)).Actions)
}

func TestWhatCanGoNowDoesNotWaitForWhatIsClaimedAhead(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Hour)
	b.accept(queueOf(1), 0, 20)
	b.accept(queueOf(2), 0, 4)
	c := b.claim(4, queueOf(1))
	b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)})
	b.exec(`UPDATE throttle_windows SET ended_at = now() - interval '59 minutes 30 seconds'`)
	all := b.claims(store.ClaimRequest{Limit: 100, Batch: 100, Ahead: time.Minute}, queueOf(1), queueOf(2))
	require.Len(t, all.Claims, 2)
	require.Len(t, all.Claims[0].Actions, 6+4)
	require.Zero(t, all.Claims[0].NotBefore)
	require.Len(t, all.Claims[1].Actions, 4)
	require.InDelta(t, 30*time.Second, time.Until(all.Claims[1].NotBefore), float64(5*time.Second))
}

// The period begins with the answer, however late it is written down.
func TestBudgetComesBackAPeriodAfterTheAnswerNotAfterItsRecord(t *testing.T) {
	t.Parallel()
	b := throttle(t, 1, 1, store.Hour)
	b.accept(queueOf(1), 0, 2)
	c := b.claim(1, queueOf(1))
	b.record(store.Outcome{Claim: c.Number, Done: idsOf(c), Ago: 300 * time.Millisecond})
	require.Equal(t, 300, b.count(`SELECT round(extract(epoch FROM a.finished_at - w.ended_at) * 1000)::int
		FROM throttle_windows w, action_executions a WHERE a.state = 'completed'`))
	c = b.claim(1, queueOf(1))
	require.Empty(t, c.Actions)
	require.InDelta(t, time.Hour, c.Queues[0].In, float64(5*time.Second))
}

func TestFailuresHoldAndThenGiveUp(t *testing.T) {
	t.Parallel()
	b := throttle(t, 1000, 1, store.Second)
	b.accept(queueOf(1), 0, 1)
	fail := func() store.Recorded {
		b.exec(`UPDATE action_executions SET due_at = now() - interval '1 second'`)
		c := b.claim(100, queueOf(1))
		require.Len(t, c.Actions, 1)
		return b.record(store.Outcome{Claim: c.Number, Failed: idsOf(c), Retry: time.Second, Error: "HubSpot said 500"})
	}
	for i := 1; i < 20; i++ {
		require.Equal(t, store.Recorded{Failed: 1, Held: map[bool]int{true: 1}[i%3 == 0]}, fail(), "failure %d", i)
		due := b.count(`SELECT extract(epoch FROM due_at - now())::int FROM action_executions`)
		if i%3 == 0 {
			require.InDelta(t, 1800, due, 5)
		} else {
			require.InDelta(t, 1, due, 2)
		}
	}
	require.Equal(t, 1, fail().Failed)
	c := b.claim(100, queueOf(1))
	require.True(t, c.Actions[0].GivingUp, "due at once")
	require.Equal(t, store.Recorded{GivenUp: 1}, b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)}))
	require.Equal(t, store.ActionGivenUp, b.accept(queueOf(1), 0, 1)[0].State)
	require.Equal(t, "HubSpot said 500", must(b.Queue(t.Context(), queueOf(1).ID()))(t).LastError)
}

func TestReleasedActionsCountNoFailure(t *testing.T) {
	t.Parallel()
	b := throttle(t, 2, 1, store.Day)
	b.accept(queueOf(1), 0, 2)
	c := b.claim(100, queueOf(1))
	b.record(store.Outcome{Claim: c.Number, Released: idsOf(c), Refund: true, Error: "rate limit"})
	require.Zero(t, b.count(`SELECT sum(failures) FROM action_executions`))
	again := b.claim(100, queueOf(1))
	require.Len(t, again.Actions, 2, "nothing was completed, so the budget is back")
	held, left, err := b.Confirm(t.Context(), again.Number, portal, idsOf(again))
	require.NoError(t, err)
	require.Len(t, held, 2)
	require.Greater(t, left, lease-5*time.Second)
}

func TestAStaleOwnerHasLost(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	b.accept(queueOf(1), 0, 1)
	stale := b.claim(100, queueOf(1))
	b.exec(`UPDATE action_executions SET due_at = now() - interval '1 second'`) // the lease is over
	held, _, err := b.Confirm(t.Context(), stale.Number, portal, idsOf(stale))
	require.NoError(t, err)
	require.Empty(t, held)
	owner := b.claim(100, queueOf(1))
	require.Len(t, owner.Actions, 1)
	require.Zero(t, b.record(store.Outcome{Claim: stale.Number, Done: idsOf(stale)}))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM action_executions WHERE state = 'waiting'`))
	require.Equal(t, 1, b.record(store.Outcome{Claim: owner.Number, Done: idsOf(owner)}).Completed)
}

func TestCompletedActionsAreCountedPerQueue(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	completed := func(index int) int64 {
		t.Helper()
		q := must(b.Queue(t.Context(), queueOf(index).ID()))(t)
		return q.Completed
	}
	b.accept(queueOf(1), 0, 3)
	b.accept(queueOf(2), 10, 2)
	require.Zero(t, completed(1))
	c := b.claim(100, queueOf(1), queueOf(2))
	ids := idsOf(c)
	require.Len(t, ids, 5)
	b.record(store.Outcome{Claim: c.Number, Done: ids[:4], Released: ids[4:]})
	b.record(store.Outcome{Claim: c.Number, Done: ids}) // a repeat counts nothing
	require.Equal(t, int64(4), completed(1)+completed(2))
	b.exec(`UPDATE action_executions SET due_at = now() WHERE state = 'waiting'`)
	c = b.claim(100, queueOf(1), queueOf(2))
	b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)})
	require.Equal(t, int64(3), completed(1))
	require.Equal(t, int64(2), completed(2))
	b.exec(`DELETE FROM throttle_queues WHERE id = $1`, queueOf(1).ID())
	require.Equal(t, 1, b.count(`SELECT count(*) FROM throttle_totals`), "a forgotten queue takes its count along")
}

func TestPausedQueuesKeepTheirActionsAndRedriveGivesNewTries(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	b.accept(queueOf(1), 0, 2)
	id := queueOf(1).ID()
	require.NoError(t, b.Pause(t.Context(), id, true))
	c := b.claim(100, queueOf(1))
	require.Empty(t, c.Actions)
	require.False(t, c.Queues[0].Waiting)
	require.NoError(t, b.Pause(t.Context(), id, false))
	c = b.claim(100, queueOf(1))
	b.record(store.Outcome{Claim: c.Number, Failed: idsOf(c), Retry: time.Hour, Error: "no"})
	require.Empty(t, b.claim(100, queueOf(1)).Actions)
	require.Equal(t, 2, must(b.Redrive(t.Context(), id))(t))
	require.Len(t, b.claim(100, queueOf(1)).Actions, 2)
	require.Equal(t, store.NotFound, store.CodeOf(b.Pause(t.Context(), "queue:none", true)))
	require.Equal(t, store.NotFound, codeOf(b.Redrive(t.Context(), "queue:none")))
}

func TestQueuesWithoutALivingJobAreFound(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	for i := range 4 {
		b.accept(queueOf(i), 0, 1)
	}
	none := must(b.Restore(t.Context(), 100))(t)
	require.Empty(t, none)
	b.exec(`DELETE FROM river_job WHERE args->>'queue' = $1`, queueOf(0).ID())
	b.exec(`UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE args->>'queue' = $1`, queueOf(1).ID())
	b.exec(`UPDATE river_job SET state = 'running', attempted_at = now() - interval '50 seconds' WHERE args->>'queue' IN ($1, $2)`, queueOf(2).ID(), queueOf(3).ID())
	require.NoError(t, b.Heartbeat(t.Context(), []string{queueOf(3).ID()}))
	require.ElementsMatch(t, []store.QueueKey{queueOf(0), queueOf(1), queueOf(2)}, must(b.Restore(t.Context(), 100))(t))
	none = must(b.Restore(t.Context(), 100))(t)
	require.Empty(t, none)
	require.Equal(t, 3, b.count(`SELECT count(*) FROM river_job WHERE state = 'available'`))
}

func TestOneRefreshAtATimeAndALateOneLoses(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	keep := func(text string) store.SealedTokens {
		return store.SealedTokens{PortalID: portal, Access: []byte(text), Refresh: []byte(text), ExpiresIn: time.Hour}
	}
	require.NoError(t, b.Install(t.Context(), keep("first")))
	first := must(b.BeginRefresh(t.Context(), portal, 1, time.Minute))(t)
	require.NotZero(t, first)
	require.Zero(t, must(b.BeginRefresh(t.Context(), portal, 1, time.Minute))(t))
	b.exec(`UPDATE oauth_tokens SET refresh_until = now() - interval '1 second'`)
	second := must(b.BeginRefresh(t.Context(), portal, 1, time.Minute))(t)
	require.NotZero(t, second)
	version := must(b.EndRefresh(t.Context(), second, keep("second")))(t)
	require.EqualValues(t, 2, version)
	version = must(b.EndRefresh(t.Context(), first, keep("late")))(t)
	require.Zero(t, version)
	require.Zero(t, must(b.BeginRefresh(t.Context(), portal, 1, time.Minute))(t), "who has seen old tokens reads them again")
	require.Equal(t, "second", string(must(b.Tokens(t.Context(), portal))(t).Access))
}

func TestOldActionsAreForgottenInBatches(t *testing.T) {
	t.Parallel()
	b := throttle(t, 100, 1, store.Second)
	b.accept(queueOf(1), 0, 5)
	c := b.claim(4, queueOf(1))
	b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)})
	b.exec(`UPDATE action_executions SET received_at = now() - interval '31 days', finished_at = finished_at - interval '31 days'`)
	n := must(b.Forget(t.Context(), 30*24*time.Hour, 3))(t)
	require.Equal(t, 3, n)
	n = must(b.Forget(t.Context(), 30*24*time.Hour, 3))(t)
	require.Equal(t, 1, n)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM action_executions`), "what waits stays")
}

// Rows of a queue that nobody claims from are deleted by nobody else.
func TestBudgetThatIsBackIsForgottenWhereverItIs(t *testing.T) {
	t.Parallel()
	b := throttle(t, 100, 1, store.Hour)
	for i := range 5 {
		b.accept(queueOf(i), 0, 4)
		for range 4 {
			c := b.claim(1, queueOf(i))
			b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)})
		}
	}
	require.NoError(t, b.Pause(t.Context(), queueOf(1).ID(), true))
	require.NoError(t, b.DeleteConfig(t.Context(), portal, 1))
	b.exec(`UPDATE throttle_windows SET ended_at = now() - interval '1 hour' WHERE id % 4 > 0`)
	b.exec(`INSERT INTO throttle_windows (queue, claim, n, ended_at) VALUES (4711, 1, 1, now() - interval '1 second')`) // of no queue
	total, after := 0, int64(0)
	for range 5 {
		n, next, err := b.SweepWindows(t.Context(), after, 6)
		require.NoError(t, err)
		total += n
		if after = next; next == 0 {
			break
		}
	}
	require.Zero(t, after, "it has seen them all")
	require.Equal(t, 15+1, total)
	require.Equal(t, 5, b.count(`SELECT count(*) FROM throttle_windows`), "what counts stays")
}

// Budget that was spent in drops comes back in fewer, and never before its time.
func TestSpentBudgetIsMerged(t *testing.T) {
	t.Parallel()
	b := throttle(t, 100_000, 1, store.Hour)
	b.accept(queueOf(1), 0, 1)
	b.accept(queueOf(2), 0, 1)
	// In the hour that counts, in half of it, just now, and under way.
	b.exec(`INSERT INTO throttle_windows (queue, claim, n, ended_at)
		SELECT q.seq, g, 1 + g % 3, now() - q.seq * (3000 - g + random()) / 3000 * interval '29 minutes'
		FROM generate_series(1, 3000) g, throttle_queues q
		UNION ALL SELECT q.seq, 4000 + g, 1, now() + (g - 20) * interval '2 seconds' FROM generate_series(1, 40) g, throttle_queues q`)
	type spent struct {
		queue   int64
		endedAt time.Time
		n       int
	}
	all := func() []spent {
		rows := must(b.Pool.Query(t.Context(), `SELECT queue, ended_at, n FROM throttle_windows`))(t)
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s spent, err error) { return s, row.Scan(&s.queue, &s.endedAt, &s.n) })
		require.NoError(t, err)
		return list
	}
	// still is what of a queue's budget has not come back a period after at.
	still := func(list []spent, queue int64, at time.Time) (n int) {
		for _, s := range list {
			if s.queue == queue && s.endedAt.After(at) {
				n += s.n
			}
		}
		return n
	}
	before, gone := all(), 0
	young := b.count(`SELECT count(*) FROM throttle_windows WHERE ended_at > now() - interval '50 seconds'`)
	for range 4 {
		for after := int64(0); ; {
			n, next, err := b.SweepWindows(t.Context(), after, 500)
			require.NoError(t, err)
			gone += n
			if after = next; next == 0 {
				break
			}
		}
	}
	after := all()
	require.Len(t, after, len(before)-gone)
	require.Less(t, len(after), len(before)/3)
	require.GreaterOrEqual(t, b.count(`SELECT count(*) FROM throttle_windows WHERE ended_at > now() - interval '2 minutes'`), young)
	for queue := int64(1); queue <= 2; queue++ {
		begin := time.Now().Add(-time.Hour)
		for at := begin; at.Before(begin.Add(62 * time.Minute)); at = at.Add(7 * time.Second) {
			was, is := still(before, queue, at), still(after, queue, at)
			require.GreaterOrEqual(t, is, was, "at %s it would come back early", at)
			require.LessOrEqual(t, is, still(before, queue, at.Add(-time.Hour/1000)), "at %s it would come back too late", at)
		}
	}
}

func TestQueuesOfWhichNothingIsLeftAreForgotten(t *testing.T) {
	t.Parallel()
	b := throttle(t, 100, 1, store.Hour)
	done := func(workflow int) {
		b.accept(queueOf(workflow), 0, 1)
		c := b.claim(1, queueOf(workflow))
		b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)})
	}
	for i := range 7 {
		done(i)
	}
	b.accept(queueOf(1), 1, 1) // waits
	require.NoError(t, b.Pause(t.Context(), queueOf(2).ID(), true))
	b.exec(`DELETE FROM throttle_windows w USING throttle_queues q WHERE q.seq = w.queue AND q.id <> $1`, queueOf(3).ID()) // its budget counts
	b.exec(`DELETE FROM river_job WHERE args->>'queue' NOT IN ($1, $2)`, queueOf(4).ID(), queueOf(6).ID())                 // its job lives
	b.exec(`UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE args->>'queue' = $1`, queueOf(6).ID())    // it can be retried
	b.exec(`UPDATE throttle_queues SET received_at = now() - interval '31 days' WHERE id <> $1`, queueOf(5).ID())          // it is young
	require.NoError(t, b.DeleteConfig(t.Context(), portal, 1))
	b.exec(`UPDATE throttle_configs SET deleted_at = now() - interval '31 days'`)
	const age = 30 * 24 * time.Hour
	n := must(b.ForgetQueues(t.Context(), age, 100))(t)
	require.Equal(t, 1, n)
	require.Zero(t, b.count(`SELECT count(*) FROM throttle_queues WHERE id = $1`, queueOf(0).ID()))
	require.Equal(t, 6, b.count(`SELECT count(*) FROM throttle_queues`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM throttle_configs`), "the others need it")
	b.accept(queueOf(0), 7, 1)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM river_job j, throttle_queues q WHERE q.id = $1 AND j.id = q.job_id AND j.state = 'available'`,
		queueOf(0).ID()), "it comes back as new")

	b.exec(`DELETE FROM throttle_windows`)
	b.exec(`UPDATE action_executions SET state = 'completed', finished_at = now() WHERE state = 'waiting'`)
	b.exec(`DELETE FROM river_job`)
	b.exec(`UPDATE throttle_queues SET received_at = now() - interval '31 days', paused_at = NULL`)
	for _, want := range []int{4, 3, 0} {
		n = must(b.ForgetQueues(t.Context(), age, 4))(t)
		require.Equal(t, want, n)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM throttle_configs`), "nobody needs it any more")
}

// HubSpot has gone on without them, whether their queue is paused or not.
func TestWhatIsTooLateIsDropped(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	b.accept(queueOf(1), 0, 149)
	b.accept(queueOf(1), 149, 1)
	require.NoError(t, b.Pause(t.Context(), queueOf(1).ID(), true))
	require.False(t, b.claim(10, queueOf(1)).Queues[0].Waiting)
	b.exec(`UPDATE action_executions SET expires_at = now() WHERE callback_id <> '1-c149'`)
	c := b.claim(10, queueOf(1))
	require.Equal(t, 110, c.Expired)
	require.True(t, c.Queues[0].Waiting, "there are more")
	require.Zero(t, c.Queues[0].In)
	c = b.claim(10, queueOf(1))
	require.Equal(t, 39, c.Expired)
	require.Empty(t, c.Actions)
	require.False(t, c.Queues[0].Waiting, "it is paused")

	require.NoError(t, b.Pause(t.Context(), queueOf(1).ID(), false))
	b.accept(queueOf(1), 150, 2)
	b.exec(`UPDATE action_executions SET expires_at = now() WHERE callback_id = '1-c150'`)
	c = b.claim(100, queueOf(1))
	require.Equal(t, 1, c.Expired)
	require.ElementsMatch(t, []string{"1-c149", "1-c151"}, idsOf(c))
	require.Equal(t, 150, b.count(`SELECT count(*) FROM action_executions WHERE state = 'expired'`))
}

func TestRateOfADrainedQueueIsNotUsed(t *testing.T) {
	t.Parallel()
	b := throttle(t, 5, 1, store.Hour)
	used := func() int {
		t.Helper()
		q := must(b.Queue(t.Context(), queueOf(1).ID()))(t)
		return q.RateUsed
	}
	b.accept(queueOf(1), 0, 3)
	require.Zero(t, used(), "nothing was sent yet")
	c := b.claim(100, queueOf(1))
	b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)})
	require.Equal(t, 3, used())
	b.exec(`UPDATE throttle_windows SET ended_at = ended_at - interval '1 hour'`)
	require.Zero(t, used())
	b.exec(`DELETE FROM throttle_windows`)
	require.Zero(t, used())
}
