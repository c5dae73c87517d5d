package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"takt/store"
)

// Throttle stores actions, their queues and rates, and the OAuth tokens of portals. Safe for
// concurrent use.
type Throttle struct {
	db   *DB
	jobs *river.Client[pgx.Tx]
}

// NewThrottle returns the actions in db. The error is that of River's configuration.
func NewThrottle(db *DB) (*Throttle, error) {
	jobs, err := newJobInserter()
	if err != nil {
		return nil, fmt.Errorf("making River's inserter: %w", err)
	}
	return &Throttle{db: db, jobs: jobs}, nil
}

// periodSeconds is the period of a row c of throttle_configs, in seconds.
const periodSeconds = `c.time_period * CASE c.time_unit
	WHEN 'second' THEN 1 WHEN 'minute' THEN 60 WHEN 'hour' THEN 3600 ELSE 86400 END::float8`

const configColumns = `portal_id, action_id, max_throughput, time_period, time_unit, updated_at`

// sqlPutConfig also notifies all controllers, because their caches and timers depend on the
// rate.
const sqlPutConfig = `/* put_config */
WITH put AS (
	INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) VALUES ($1, $2, $3, $4, $5)
	ON CONFLICT (portal_id, action_id) DO UPDATE SET max_throughput = excluded.max_throughput,
		time_period = excluded.time_period, time_unit = excluded.time_unit, updated_at = now(), deleted_at = NULL
	RETURNING ` + configColumns + `
)
SELECT put.*, pg_notify('takt', 'throttle:config ' || portal_id || ':' || action_id) FROM put`

// PutConfig saves a rate and returns it as saved. It also applies to actions that wait.
func (t *Throttle) PutConfig(ctx context.Context, c store.ThrottleConfig) (saved store.ThrottleConfig, err error) {
	err = t.db.write("saving a throttle's configuration").scan(ctx, nil,
		[]any{&saved.PortalID, &saved.ActionID, &saved.MaxThroughput, &saved.TimePeriod, &saved.TimeUnit, &saved.UpdatedAt, nil},
		sqlPutConfig, c.PortalID, c.ActionID, c.MaxThroughput, c.TimePeriod, c.TimeUnit)
	return saved, err
}

const sqlConfig = `/* config */ SELECT ` + configColumns + ` FROM throttle_configs WHERE portal_id = $1 AND action_id = $2 AND deleted_at IS NULL`

// Config returns the rate of an action. Error: NotFound, also if it is deleted.
func (t *Throttle) Config(ctx context.Context, portal, action int64) (store.ThrottleConfig, error) {
	return rowOf(ctx, t.db.read("reading a throttle's configuration"), errNoConfig, pgx.RowToStructByPos[store.ThrottleConfig], sqlConfig, portal, action)
}

func errNoConfig() error { return store.NewError(store.NotFound, "Configuration not found") }

const sqlConfigs = `/* configs */ SELECT ` + configColumns + ` FROM throttle_configs
WHERE portal_id = @portal AND deleted_at IS NULL AND action_id > @after AND action_id <= @until
ORDER BY action_id OFFSET @skip::int LIMIT @limit::int`

// Configs returns a page of a portal's rates, by the action's id.
func (t *Throttle) Configs(ctx context.Context, portal int64, p store.Page) ([]store.ThrottleConfig, store.Cursor, error) {
	return numberedPage(ctx, t.db.read("listing throttle configurations"), numberedList{"rates", false},
		func(c store.ThrottleConfig) int64 { return c.ActionID }, sqlConfigs, p, pgx.NamedArgs{"portal": portal})
}

const sqlHasConfigs = `/* has_configs */ SELECT EXISTS (SELECT FROM throttle_configs)`

// HasConfigs reports whether there is any rate. Deleted ones count, because their actions may
// still wait.
func (t *Throttle) HasConfigs(ctx context.Context) (bool, error) {
	return valueOf[bool](ctx, t.db.read("looking for throttle configurations"), sqlHasConfigs)
}

const sqlDeleteConfig = `/* delete_config */
WITH gone AS (
	UPDATE throttle_configs SET deleted_at = now() WHERE portal_id = $1 AND action_id = $2 AND deleted_at IS NULL
	RETURNING portal_id, action_id
)
SELECT pg_notify('takt', 'throttle:config ' || portal_id || ':' || action_id) FROM gone`

// DeleteConfig deletes a rate. New actions are refused from then on; waiting ones keep it.
// Error: NotFound.
func (t *Throttle) DeleteConfig(ctx context.Context, portal, action int64) error {
	return t.db.write("deleting a throttle's configuration").change(ctx, errNoConfig, sqlDeleteConfig, portal, action)
}
