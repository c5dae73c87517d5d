package postgres_test

import (
	"testing"

	"takt/store"
	"takt/store/postgres"
)

// Workers that have polled before are served by the plain statement, unless
// something about them changed.
func TestAKnownWorkerIsServedAsItIsNow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		gets   bool
	}{
		"nothing changed":    {`SELECT`, true},
		"drained":            {`UPDATE workers SET draining = true`, false},
		"critical":           {`UPDATE workers SET critical = true`, false},
		"other platforms":    {`UPDATE workers SET platforms = '{android}'`, false},
		"moved in the table": {`UPDATE workers SET last_seen_at = now()`, true},
		"all is elsewhere":   {`VACUUM FULL workers`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.queue = postgres.NewQueue(b.DB, postgres.QueueConfig{SpareCritical: true})
			w, other := b.worker(), b.worker(takes(store.Android))
			w.gets("")
			other.gets("")
			b.exec(c.change)
			w.gets("") // learns where the changed row is
			build := b.build()
			want := ""
			if c.gets {
				want = build.ID
			}
			w.gets(want)
			other.gets("")
		})
	}
}
