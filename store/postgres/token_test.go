package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// Two-phase rotation, as 001's timeline: a token dies when its successor is first
// used to poll, or at its own expiry. Each step shows a token and gets a new one,
// which takes the step's number as its name; 0 is the registration's token and -1
// shows none.
func TestTokenRotation(t *testing.T) {
	t.Parallel()
	type step struct {
		show   int
		refuse bool
		first  string // SQL before the step
	}
	expire := func(which string) string {
		return `UPDATE workers SET ` + which + `_expires = now() - interval '1 s'`
	}
	for name, steps := range map[string][]step{
		"each reply arrives":                         {{show: 0}, {show: 1}, {show: 2}, {show: 3}},
		"a lost reply leaves the shown token valid":  {{show: 0}, {show: 0}, {show: 0}, {show: 3}},
		"a used successor ends its predecessor":      {{show: 0}, {show: 1}, {show: 0, refuse: true}},
		"the predecessor is the last fallback":       {{show: 0}, {show: 1}, {show: 1}, {show: 1}, {show: 0, refuse: true}},
		"a lost successor is replaced by the next":   {{show: 0}, {show: 0}, {show: 1, refuse: true}, {show: 2}},
		"an expired token is refused":                {{show: 0, refuse: true, first: expire("current")}},
		"an expired predecessor is refused":          {{show: 0}, {show: 0, refuse: true, first: expire("previous")}, {show: 1}},
		"a predecessor outlives an expired current":  {{show: 0}, {show: 0, first: expire("current")}},
		"a predecessor keeps its own expiry":         {{show: 0, first: `UPDATE workers SET current_expires = now() + interval '1 hour'`}, {show: 0}, {show: 0, refuse: true, first: `UPDATE workers SET previous_expires = previous_expires - interval '1 hour'`}},
		"a poll without token rotates as if lost":    {{show: 0}, {show: -1}, {show: 0}, {show: 3}},
		"polls without token don't end a valid one":  {{show: -1}, {show: -1}, {show: -1}, {show: 0}, {show: 4}},
		"the last token of polls without one counts": {{show: -1}, {show: -1}, {show: 2}, {show: 0, refuse: true}},
	} {
		for _, kept := range []bool{true, false} {
			if !kept {
				name += ", families changing"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				w := b.worker()
				tokens := []string{w.token}
				for i, s := range steps {
					if s.first != "" {
						b.exec(s.first)
					}
					next := store.NewWorkerToken()
					poll := store.Poll{WorkerID: w.id}
					if s.show >= 0 {
						poll = store.Poll{Token: store.HashToken(tokens[s.show])}
						if kept {
							next = store.NextWorkerToken(tokens[s.show])
						}
					}
					poll.Next = store.HashToken(next)
					tokens = append(tokens, next)
					want := store.PollAnswered
					if s.refuse {
						want = store.PollUnknownToken
					}
					require.Equal(t, want, b.serve(poll)[0].Outcome, "step %d", i+1)
				}
			})
		}
	}
}

func TestRotationIsAHeapOnlyUpdate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	for range 50 {
		w.gets("")
	}
	var updates, hot int
	b.exec(`SELECT pg_stat_force_next_flush()`)
	require.Eventually(t, func() bool {
		err := b.Pool.QueryRow(t.Context(),
			`SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'workers'`).Scan(&updates, &hot)
		return err == nil && updates >= 50
	}, 20e9, 50e6)
	require.Greater(t, hot, updates*9/10, "all but those that found their page full")
}

func TestOldTokensOfAReregisteredWorkerAreVoid(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	w.gets("")
	r := store.Registration{ID: w.id, Name: "other", Slots: 1, Token: store.HashToken("a completely new token"), TTL: 90e9}
	known, err := b.workers.Register(t.Context(), r)
	require.NoError(t, err)
	require.True(t, known.Again)
	require.Equal(t, store.PollUnknownToken, w.lost().Outcome)
	w.token = "a completely new token"
	w.gets("")
	require.Equal(t, "test worker", w.find().Name, "a known worker keeps its name")
}
