package postgres_test

import (
	"crypto/sha256"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// under makes s a submission under a key; its reply is its id.
func under(key string, s store.Submission) store.Submission {
	s.Once = &store.Once{
		Key: sha256.Sum256([]byte(key)), Content: sha256.Sum256([]byte(s.Platform)),
		Seal: func(b store.Build) ([]byte, error) { return []byte(b.ID), nil },
	}
	return s
}

func (b *fixture) age(interval string) {
	b.t.Helper()
	b.exec(`UPDATE idempotency_keys SET created_at = created_at - $1::interval`, interval)
}

func requireRepeat(t *testing.T, err error, of string) {
	t.Helper()
	var again *store.Repeated
	require.ErrorAs(t, err, &again)
	require.Equal(t, of, string(again.Reply))
	require.Equal(t, sha256.Sum256([]byte(store.Android)), again.Content)
}

func TestSubmitUnderAKeyHappensOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := under("k", submission(t))
	must(b.builds.Submit(t.Context(), first))(t)

	notPlaced := func() error { panic("a repeat places nothing") }
	second := under("k", submission(t))
	_, err := b.builds.Submit(t.Context(), second, staged(notPlaced))
	requireRepeat(t, err, first.ID)
	second = under("k", submission(t))
	second.Platform = store.IOS
	second.Once.Content[0]++
	_, err = b.builds.Submit(t.Context(), second, staged(notPlaced))
	requireRepeat(t, err, first.ID) // who asks compares the contents

	must(b.builds.Submit(t.Context(), under("another", submission(t))))(t)
	must(b.builds.Submit(t.Context(), submission(t)))(t)
	require.Equal(t, store.NotFound, codeOf(b.builds.Find(t.Context(), second.ID)))
}

func TestARepeatIsAnsweredThoughTheQueueIsFull(t *testing.T) {
	t.Parallel()
	b := setup(t)
	builds := postgres.NewBuilds(b.DB, postgres.BuildsConfig{QueueLimit: 1})
	first := under("k", submission(t))
	must(builds.Submit(t.Context(), first))(t)
	must(builds.Submit(t.Context(), submission(t)))(t)
	_, err := builds.Submit(t.Context(), under("k", submission(t)))
	requireRepeat(t, err, first.ID)
	require.Equal(t, store.QueueFull, codeOf(builds.Submit(t.Context(), under("new", submission(t)))))
	_, err = b.builds.Submit(t.Context(), under("new", submission(t)))
	require.NoError(t, err, "a refusal takes no key")
}

func TestAFailedSubmissionTakesNoKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.builds.Submit(t.Context(), under("k", submission(t)), staged(func() error { return errors.New("no room") }))
	require.Error(t, err)
	broken := under("k", submission(t))
	broken.Once.Seal = func(store.Build) ([]byte, error) { return nil, errors.New("no cipher") }
	_, err = b.builds.Submit(t.Context(), broken)
	require.ErrorContains(t, err, "no cipher")
	must(b.builds.Submit(t.Context(), under("k", submission(t))))(t)
}

// All have passed the look-up, and wait for another submission that has the key and
// fails.
func TestManyAtOnceUnderOneKeyMakeOneBuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.build() // counts, so that the others need not
	const n = 8
	once := under("k", submission(t)).Once
	release := b.locks(`INSERT INTO idempotency_keys (key, content, build, reply) VALUES ($1, $2, 'other', '')`, once.Key[:], once.Content[:])
	errs, ids, files := make([]error, n), make([]string, n), make([]settled, n)
	var wg sync.WaitGroup
	for i := range n {
		s := under("k", submission(t))
		ids[i] = s.ID
		wg.Go(func() { _, errs[i] = b.builds.Submit(t.Context(), s, &files[i]) })
	}
	b.waits(n)
	release()
	wg.Wait()
	winner := ""
	for i, err := range errs {
		if err == nil {
			require.Empty(t, winner)
			winner = ids[i]
		}
	}
	require.NotEmpty(t, winner)
	for i, err := range errs {
		require.Equal(t, settled{committed: true, aborted: err != nil}, files[i])
		if err != nil {
			requireRepeat(t, err, winner)
		}
	}
	require.Equal(t, 1+1, b.count(`SELECT count(*) FROM builds`))
}

func TestAKeyWhoseCommitsOutcomeWasUnknownIsARepeat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cut := b.through()
	cut("commit")
	first := under("k", submission(t))
	_, err := b.builds.Submit(t.Context(), first)
	require.ErrorIs(t, err, store.ErrOutcomeUnknown)
	_, err = b.builds.Submit(t.Context(), under("k", submission(t)))
	requireRepeat(t, err, first.ID)
}

func TestKeysAreForgottenAfterADay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := under("k", submission(t))
	must(b.builds.Submit(t.Context(), first))(t)
	b.age("23 hours 59 minutes")
	_, err := b.builds.Submit(t.Context(), under("k", submission(t)))
	requireRepeat(t, err, first.ID)
	b.age("2 minutes")
	second := under("k", submission(t))
	must(b.builds.Submit(t.Context(), second))(t)
	_, err = b.builds.Submit(t.Context(), under("k", submission(t)))
	requireRepeat(t, err, second.ID)

	b.age("26 hours")
	require.EqualValues(t, 1, must(postgres.NewFiles(b.DB).ForgetKeys(t.Context(), 10))(t))
}

func TestSubmitKeepsLabels(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := submission(t)
	s.Labels = store.Labels{"cache": "app", "who": "\u96ea"}
	require.Equal(t, s.Labels, must(b.builds.Submit(t.Context(), s))(t).Labels)
	require.Equal(t, s.Labels, b.find(s.ID).Labels)
	require.Equal(t, s.Labels, listed(b.builds.List(t.Context(), store.BuildFilter{}, store.Page{}))(t)[0].Labels)
	require.Empty(t, b.find(b.build().ID).Labels)
}
