package postgres_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// raise makes the database refuse every change that cond describes.
func (b *fixture) raise(table, cond string) {
	b.t.Helper()
	b.exec(`CREATE FUNCTION refuse_` + table + `() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'bad row'; END $$`)
	b.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON ` + table + ` FOR EACH ROW WHEN (` + cond + `) EXECUTE FUNCTION refuse_` + table + `()`)
}

func TestABadBuildDoesNotBlockThoseBehindIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		when  string // the trigger's condition, with the id quoted
		state store.BuildState
	}{
		"that can be failed":               {when: `AND NEW.state = 'assigned'`, state: store.Failed},
		"that can't be changed in any way": {state: store.Pending},
	} {
		inDatabase(t, name, func(b *fixture) {
			var mu sync.Mutex
			var told []store.BuildRef
			b.queue = postgres.NewQueue(b.DB, postgres.QueueConfig{Quarantined: func(r store.BuildRef, cause error) {
				mu.Lock()
				defer mu.Unlock()
				require.ErrorContains(b.t, cause, "bad row")
				told = append(told, r)
			}})
			if c.state == store.Pending {
				b.except = append(b.except, "lines") // the number is in the row that can't be changed
			}
			good1, bad, good2 := b.build(), b.build(), b.build()
			b.raise("builds", `OLD.id = '`+bad.ID+`' `+c.when)

			var polls []store.Poll
			for range 8 {
				polls = append(polls, b.worker().request())
			}
			var got []string
			for _, r := range b.assign(polls...) {
				require.Equal(b.t, store.PollServed, r.Outcome)
				if r.Jobs.First() != nil {
					got = append(got, r.Jobs.First().BuildID)
				}
			}
			require.Equal(b.t, []string{good1.ID, good2.ID}, got)
			require.Equal(b.t, []store.BuildRef{{ID: bad.ID, Platform: store.IOS, ClassID: store.IOSClass, SubmittedAt: bad.SubmittedAt}}, told)
			require.Equal(b.t, c.state, b.find(bad.ID).State)
			require.Contains(b.t, b.logs(bad.ID), "Build cannot be assigned: the database refuses it")

			good3 := b.build()
			b.worker().gets(good3.ID)
			require.Len(b.t, told, 1, "it is passed over from now on")
		})
	}
}

func TestABadWorkerFailsItsOwnPollOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two := b.build(), b.build()
	good, bad, other := b.worker(), b.worker(), b.worker()
	b.raise("workers", `OLD.id = '`+bad.id+`'`)
	got := b.assign(good.request(), bad.request(), other.request())
	require.Equal(t, store.PollFailed, got[1].Outcome)
	require.ErrorContains(t, got[1].Err, "bad row")
	require.Equal(t, one.ID, jobID(got[0]))
	require.Equal(t, two.ID, jobID(got[2]))
}
