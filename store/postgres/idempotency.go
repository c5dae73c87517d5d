package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// keyLife is how long an idempotency key is valid.
const keyLife = `interval '24 hours'`

const sqlFindKey = `/* find_key */ SELECT content, reply FROM idempotency_keys WHERE key = $1 AND created_at > now() - ` + keyLife

// repeated returns a *store.Repeated as its error if the idempotency key has been used. once
// may be nil.
func repeated(ctx context.Context, op operation, once *store.Once) error {
	if once == nil {
		return nil
	}
	op.writes = false
	return op.run(ctx, func(ctx context.Context, c *pgx.Conn) error { return findKey(ctx, c, once) })
}

func findKey(ctx context.Context, q querier, once *store.Once) error {
	var content []byte
	found := &store.Repeated{}
	err := q.QueryRow(ctx, sqlFindKey, once.Key[:]).Scan(&content, &found.Reply)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("looking for the idempotency key: %w", err)
	}
	copy(found.Content[:], content)
	return found
}

// sqlTakeKey returns a row if the key was free or has expired. If another transaction
// is taking the key, it waits for the end of that transaction.
const sqlTakeKey = `/* take_key */
INSERT INTO idempotency_keys AS k (key, content, build, reply) VALUES ($1, $2, $3, $4)
ON CONFLICT (key) DO UPDATE SET content = excluded.content, build = excluded.build, reply = excluded.reply, created_at = now()
WHERE k.created_at <= now() - ` + keyLife + `
RETURNING true`

// takeKey records build under its idempotency key, or returns a *store.Repeated if the key
// has been used. once may be nil.
func takeKey(ctx context.Context, tx pgx.Tx, once *store.Once, build store.Build) error {
	if once == nil {
		return nil
	}
	reply, err := once.Seal(build)
	if err != nil {
		return fmt.Errorf("sealing the reply: %w", err)
	}
	var taken bool
	err = tx.QueryRow(ctx, sqlTakeKey, once.Key[:], once.Content[:], build.ID, reply).Scan(&taken)
	if err == nil {
		return nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("taking the idempotency key: %w", err)
	}
	if err := findKey(ctx, tx, once); err != nil {
		return err
	}
	return unavailable(errors.New("the idempotency key was there and is gone"))
}

// sqlForgetKeys keeps a key for an hour after it has expired, so that the deletion does not
// collide with a submission that takes the expired key.
const sqlForgetKeys = `/* forget_keys */
DELETE FROM idempotency_keys WHERE key IN (
	SELECT key FROM idempotency_keys WHERE created_at < now() - interval '25 hours'
	ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)`

// ForgetKeys removes up to limit expired idempotency keys and returns how many.
func (f *Files) ForgetKeys(ctx context.Context, limit int) (removed int64, err error) {
	return f.db.write("forgetting idempotency keys").exec(ctx, sqlForgetKeys, limit)
}
