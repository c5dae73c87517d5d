package database

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// connTrack knows the pool's open connections, so that those in use can be
// cancelled and cut. Safe for concurrent use.
type connTrack struct {
	mu   sync.Mutex
	open map[*pgx.Conn]struct{}
}

func (t *connTrack) add(_ context.Context, conn *pgx.Conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[*pgx.Conn]struct{}{}
	}
	t.open[conn] = struct{}{}
	return nil
}

func (t *connTrack) remove(conn *pgx.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, conn)
}

func (t *connTrack) list() []*pgx.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	conns := make([]*pgx.Conn, 0, len(t.open))
	for conn := range t.open {
		conns = append(conns, conn)
	}
	return conns
}

// cancel asks the database to end what runs on the connections.
func (t *connTrack) cancel(ctx context.Context, limit time.Duration) {
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, errors.New("the database did not take the cancellation in time"))
	defer stop()
	for _, conn := range t.list() {
		_ = conn.PgConn().CancelRequest(ctx) // cut follows
	}
}

// cut closes the connections under their users, whose calls fail at once.
func (t *connTrack) cut() {
	for _, conn := range t.list() {
		hangUp(conn)
	}
}
