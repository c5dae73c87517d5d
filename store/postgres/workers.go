package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Workers keeps the machines that build. Safe for concurrent use.
type Workers struct{ db *DB }

// NewWorkers returns the workers of db.
func NewWorkers(db *DB) *Workers { return &Workers{db: db} }

// errNoWorker is the answer for an unknown worker id.
func errNoWorker() error { return store.NewError(store.NotFound, "Worker not found") }

// sqlIdentify adds who a worker is, or says of a known one what it can do now, and
// locks its identity: registrations of one id come one after the other.
const sqlIdentify = `
INSERT INTO worker_details (worker_id, name, capabilities) VALUES ($1, $2, $3)
ON CONFLICT (worker_id) DO UPDATE SET capabilities = excluded.capabilities`

// sqlRegister adds a worker, or gives a known one a new token: its builds,
// counters and name stay, what it can do is as it says now. poll_seq moves, so
// polls of its former life are superseded; their tokens are void. It runs under
// the lock of sqlIdentify, as a statement of its own: it has to see what who had
// the lock before has committed.
const sqlRegister = `
WITH known AS (
	UPDATE workers SET
		current_family = $2, current_hash = $3, current_expires = now() + $4,
		previous_family = NULL, previous_hash = NULL, previous_expires = NULL,
		poll_seq = poll_seq + 1, last_seen_at = now(),
		status = CASE WHEN held > 0 THEN 'building' ELSE 'idle' END,
		slots = $5, platforms = $6
	WHERE id = $1 RETURNING status, draining
), added AS (
	INSERT INTO workers (id, current_family, current_hash, current_expires, slots, platforms)
	SELECT $1, $2, $3, now() + $4, $5, $6 WHERE NOT EXISTS (SELECT FROM known)
	RETURNING status, draining
)
SELECT true, status, draining FROM known UNION ALL SELECT false, status, draining FROM added`

// Register adds a worker or takes a known one back. Error: RegistrationFailed
// when its capabilities can't be kept.
func (w *Workers) Register(ctx context.Context, r store.Registration) (reg store.Registered, err error) {
	platforms := make([]string, len(r.Platforms))
	for i, p := range r.Platforms {
		platforms[i] = string(p)
	}
	if len(r.Capabilities) == 0 {
		r.Capabilities = json.RawMessage(`{}`)
	}
	err = w.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		// One round trip and, because of the one Sync at its end, one transaction.
		batch := &pgx.Batch{}
		batch.Queue(sqlIdentify, r.ID, sanitize(r.Name), []byte(r.Capabilities))
		batch.Queue(sqlRegister, r.ID, r.Token.Family(), r.Token[:], r.TTL, max(r.Slots, 1), platforms).
			QueryRow(func(row pgx.Row) error { return row.Scan(&reg.Again, &reg.Status, &reg.Draining) })
		err := c.SendBatch(ctx, batch).Close()
		if isDataError(err) {
			return store.Wrap(store.RegistrationFailed, "Registration failed", err)
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		return store.Registered{}, fmt.Errorf("registering worker %s: %w", r.ID, err)
	}
	return reg, nil
}

const sqlFindWorker = `
SELECT w.id, d.name, d.capabilities, w.platforms, w.slots, w.status, w.registered_at, w.last_seen_at,
	w.completed, w.failed, w.held, w.draining
FROM workers w JOIN worker_details d ON d.worker_id = w.id WHERE w.id = $1`

// Find returns a worker. Error: NotFound.
func (w *Workers) Find(ctx context.Context, id string) (found store.Worker, err error) {
	err = w.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		var platforms []string
		var capabilities []byte
		err := c.QueryRow(ctx, sqlFindWorker, id).Scan(&found.ID, &found.Name, &capabilities, &platforms,
			&found.Slots, &found.Status, &found.RegisteredAt, &found.LastSeenAt,
			&found.Completed, &found.Failed, &found.Held, &found.Draining)
		if errors.Is(err, pgx.ErrNoRows) {
			return errNoWorker()
		}
		found.Capabilities, found.Platforms = capabilities, toPlatforms(platforms)
		found.RegisteredAt, found.LastSeenAt = found.RegisteredAt.UTC(), found.LastSeenAt.UTC()
		return err
	})
	if err != nil {
		return store.Worker{}, fmt.Errorf("finding worker %s: %w", id, err)
	}
	return found, nil
}

func toPlatforms(names []string) []store.Platform {
	if len(names) == 0 {
		return nil
	}
	platforms := make([]store.Platform, len(names))
	for i, n := range names {
		platforms[i] = store.Platform(n)
	}
	return platforms
}
