package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// Builds that another controller puts back are claimed in their turn after the
// next count, although others wait above the mark.
func TestACountFindsWhatAnotherControllerPutBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var order []string
	for range 5 {
		order = append(order, b.build(on(store.Android)).ID)
	}
	w := b.worker()
	w.gets(order[0])
	b.worker().gets(order[1])
	b.worker(takes(store.Android)).gets(order[2])
	b.exec(`UPDATE builds SET state = 'pending', worker_id = NULL, started_at = NULL WHERE id = $1`, order[0])
	b.exec(`UPDATE workers SET held = 0, status = 'idle' WHERE id = $1`, w.id)

	counts := must(b.queue.Recount(t.Context(), 10, nil, nil))(t)
	require.Equal(t, []store.ClassCount{{Class: androidClass, N: 3}}, counts.Pending)
	b.worker().gets(order[0])
	b.worker(takes(store.Android)).gets(order[3])
	counts = must(b.queue.Recount(t.Context(), 10, nil, nil))(t)
	require.Equal(t, []store.ClassCount{{Class: androidClass, N: 1}}, counts.Pending)
}
