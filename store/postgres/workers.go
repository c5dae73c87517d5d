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

// sqlRegister adds a worker, or gives a known one a new token: its builds,
// counters and name stay, what it can do is as it says now. poll_seq moves, so
// polls of its former life are superseded; their tokens are void.
const sqlRegister = `
WITH w AS (
	INSERT INTO workers (id, current_family, current_hash, current_expires, slots, platforms)
	VALUES ($1, $2, $3, now() + $4, $5, $6)
	ON CONFLICT (id) DO UPDATE SET
		current_family = excluded.current_family, current_hash = excluded.current_hash,
		current_expires = excluded.current_expires,
		previous_family = NULL, previous_hash = NULL, previous_expires = NULL,
		poll_seq = workers.poll_seq + 1, last_seen_at = now(),
		status = CASE WHEN workers.held > 0 THEN 'building' ELSE 'idle' END,
		slots = excluded.slots, platforms = excluded.platforms
	RETURNING id, poll_seq, status
), d AS (
	INSERT INTO worker_details (worker_id, name, capabilities) SELECT id, $7, $8 FROM w
	ON CONFLICT (worker_id) DO UPDATE SET capabilities = excluded.capabilities
)
SELECT poll_seq > 0, status FROM w`

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
		err := c.QueryRow(ctx, sqlRegister, r.ID, r.Token.Family(), r.Token[:], r.TTL, max(r.Slots, 1), platforms,
			sanitize(r.Name), []byte(r.Capabilities)).Scan(&reg.Again, &reg.Status)
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
SELECT w.id, d.name, d.capabilities, w.platforms, w.slots, w.status, w.registered_at, w.last_seen_at, w.completed, w.failed
FROM workers w JOIN worker_details d ON d.worker_id = w.id WHERE w.id = $1`

// Find returns a worker. Error: NotFound.
func (w *Workers) Find(ctx context.Context, id string) (found store.Worker, err error) {
	err = w.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		var platforms []string
		var capabilities []byte
		err := c.QueryRow(ctx, sqlFindWorker, id).Scan(&found.ID, &found.Name, &capabilities, &platforms,
			&found.Slots, &found.Status, &found.RegisteredAt, &found.LastSeenAt, &found.Completed, &found.Failed)
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
