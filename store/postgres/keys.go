package postgres

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Keys stores the named keys and loads them into a ring. Safe for concurrent use.
type Keys struct {
	db   *DB
	ring *store.KeyRing

	reading sync.Mutex // held while keys are read, so that no older state replaces a newer one
	version string     // of the keys in the ring; guarded by reading
}

// NewKeys returns the keys in db, which Refresh loads into ring.
func NewKeys(db *DB, ring *store.KeyRing) *Keys { return &Keys{db: db, ring: ring} }

// sqlKeysChanged gives the keys a new version, and notifies every controller. The lock of
// its row lets only one transaction at a time change keys.
const sqlKeysChanged = `/* keys_changed */
WITH s AS (
	INSERT INTO settings (key, value) VALUES ('keys', to_jsonb(gen_random_uuid()::text))
	ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now()
)
SELECT pg_notify('takt', 'settings:changed keys')`

const namedKeyColumns = `name, digest, scopes, created_by, created_at, expires_at, last_used_at, revoked_at, weight, max_pending, max_priority, coalesce(worker, ''), enrolled`

const sqlLiveKeys = `/* live_keys */ SELECT ` + namedKeyColumns + ` FROM access_keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())`

// Refresh loads the keys into the ring if they have changed since the last time.
func (k *Keys) Refresh(ctx context.Context) error {
	k.reading.Lock()
	defer k.reading.Unlock()
	version := "none"
	if _, err := k.db.setting(ctx, "keys", &version); err != nil || version == k.version {
		return err
	}
	keys, err := rowsOf(ctx, k.db.read("reading the keys"), scanKey, sqlLiveKeys)
	if err == nil {
		k.ring.Set(keys)
		k.version = version
	}
	return err
}

func scanKey(row pgx.CollectableRow) (n store.NamedKey, err error) {
	var digest []byte
	err = row.Scan(&n.Name, &digest, &n.Scopes, &n.CreatedBy, &n.CreatedAt, &n.ExpiresAt, &n.LastUsedAt, &n.RevokedAt, &n.Weight, &n.MaxPending, &n.MaxPriority, &n.Worker, &n.Enrolled)
	copy(n.Digest[:], digest)
	return n, err
}

const sqlListKeys = `/* list_keys */ SELECT ` + namedKeyColumns + ` FROM access_keys
ORDER BY revoked_at IS NOT NULL, coalesce(expires_at <= now(), false), name LIMIT 10000`

// List returns the keys, by name; those that are expired or revoked come last.
func (k *Keys) List(ctx context.Context) ([]store.NamedKey, error) {
	return rowsOf(ctx, k.db.read("listing the keys"), scanKey, sqlListKeys)
}

const sqlCreateKey = `/* create_key */
INSERT INTO access_keys (name, digest, scopes, created_by, expires_at, weight, max_pending, max_priority, enrolled) VALUES ($1, $2, $3, $4, $5, greatest($6, 1), $7, $8, $9)
ON CONFLICT (name) DO NOTHING RETURNING name`

// Create adds a key. Error: Conflict if another key has its name, even a revoked one.
func (k *Keys) Create(ctx context.Context, n store.NamedKey) error {
	return k.change(ctx, "creating key "+n.Name, func(ctx context.Context, tx pgx.Tx) error { return createKey(ctx, tx, n) })
}

func createKey(ctx context.Context, tx pgx.Tx, n store.NamedKey) error {
	err := tx.QueryRow(ctx, sqlCreateKey, n.Name, n.Digest[:], n.Scopes, store.Text(n.CreatedBy), orNull(n.ExpiresAt), n.Weight, n.MaxPending, n.MaxPriority, n.Enrolled).Scan(&n.Name)
	return orNone(err, func() error {
		return store.NewError(store.Conflict, "There is a key of this name, or there was one: take another name")
	})
}

const sqlLimitKey = `/* limit_key */
UPDATE access_keys SET weight = coalesce($2, weight), max_pending = coalesce($3, max_pending), max_priority = coalesce($4, max_priority), worker = nullif(coalesce($5, worker), '')
WHERE name = $1 AND revoked_at IS NULL
RETURNING ` + namedKeyColumns

// Limit changes the limits of a key and its worker. Pending builds keep their positions. Error:
// NotFound, also if the key is revoked.
func (k *Keys) Limit(ctx context.Context, name string, to store.KeyLimits) (n store.NamedKey, err error) {
	return n, k.change(ctx, "limiting key "+name, func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sqlLimitKey, name, to.Weight, to.MaxPending, to.MaxPriority, to.Worker) // its error is that of the rows
		n, err = pgx.CollectExactlyOneRow(rows, scanKey)
		return orNone(err, func() error { return store.NewError(store.NotFound, "Key not found") })
	})
}

const sqlRevokeKey = `/* revoke_key */
UPDATE access_keys SET revoked_at = coalesce(revoked_at, now()) WHERE name = $1 RETURNING name`

// Revoke revokes a key permanently. Repeating it is harmless. Error: NotFound.
func (k *Keys) Revoke(ctx context.Context, name string) error {
	return k.change(ctx, "revoking key "+name, func(ctx context.Context, tx pgx.Tx) error {
		return orNone(tx.QueryRow(ctx, sqlRevokeKey, name).Scan(&name), func() error { return store.NewError(store.NotFound, "Key not found") })
	})
}

const sqlSpendToken = `/* spend_token */
UPDATE access_keys SET revoked_at = now(), last_used_at = now()
WHERE name = $1 AND revoked_at IS NULL AND expires_at > now() AND 'enroll' = ANY (scopes) RETURNING name`

// Enroll adds a worker's key and revokes the enrollment token, a key that it was given for.
// Errors: Forbidden if the token was used, is revoked or has expired; Conflict as Create.
func (k *Keys) Enroll(ctx context.Context, token string, n store.NamedKey) error {
	return k.change(ctx, "enrolling with "+token, func(ctx context.Context, tx pgx.Tx) error {
		err := orNone(tx.QueryRow(ctx, sqlSpendToken, token).Scan(&token), func() error {
			return store.NewError(store.Forbidden, "This token was used, or it has expired")
		})
		if err != nil {
			return err
		}
		n.Enrolled = true
		return createKey(ctx, tx, n)
	})
}

const (
	// sqlBindKey makes $2 the only worker of an enrolled key. It affects no row if another worker
	// is that already.
	sqlBindKey = `/* bind_key */ UPDATE access_keys SET worker = $2 WHERE name = $1 AND enrolled AND (worker IS NULL OR worker = $2)`
	// sqlFreeKeys lets another worker become that of the keys of a worker that is deleted.
	sqlFreeKeys = `/* free_keys */ UPDATE access_keys SET worker = NULL WHERE worker = $1 AND enrolled`
)

// change calls f in a transaction that changes keys. The change applies on this controller
// when change returns, and on others when they are notified.
func (k *Keys) change(ctx context.Context, doing string, f func(ctx context.Context, tx pgx.Tx) error) error {
	err := k.db.write(doing).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := f(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlKeysChanged)
		return err
	})
	if err == nil {
		_ = k.Refresh(ctx) // after an error, the actor refreshes at the notification
	}
	return err
}

const sqlUseKeys = `/* use_keys */ UPDATE access_keys SET last_used_at = now() WHERE name = ANY ($1)`

// RecordUse writes the time of the last use of the keys that were used since the last call.
func (k *Keys) RecordUse(ctx context.Context) error {
	names := k.ring.TakeUsed()
	if len(names) == 0 {
		return nil
	}
	_, err := k.db.write("recording the use of keys").exec(ctx, sqlUseKeys, names)
	return err
}
