package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// stateLife is how long a state of an authorization is good, in seconds, and
// maxStates how many there may be.
const (
	stateLife = 600.0
	maxStates = 10_000
)

const sqlPutState = `
INSERT INTO oauth_states (hash) SELECT $1
WHERE (SELECT count(*) FROM (SELECT FROM oauth_states WHERE created_at > now() - make_interval(secs => $2) LIMIT $3) s) < $3`

// PutState remembers the hash of a state for ten minutes. Overloaded if too many
// authorizations are under way.
func (t *Throttle) PutState(ctx context.Context, hash [32]byte) error {
	err := t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		tag, err := c.Exec(ctx, sqlPutState, hash[:], stateLife, maxStates)
		if err == nil && tag.RowsAffected() == 0 {
			return store.NewError(store.Overloaded, "Too many authorizations are under way, try again later")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("keeping a state: %w", err)
	}
	return nil
}

const sqlTakeState = `DELETE FROM oauth_states WHERE hash = $1 RETURNING created_at > now() - make_interval(secs => $2)`

// TakeState reports whether the state is good, which it is once.
func (t *Throttle) TakeState(ctx context.Context, hash [32]byte) (good bool, err error) {
	err = t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		err := c.QueryRow(ctx, sqlTakeState, hash[:], stateLife).Scan(&good)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		return false, fmt.Errorf("taking a state: %w", err)
	}
	return good, nil
}

// sqlInstall also fences whoever refreshes the tokens that it replaces.
const sqlInstall = `
INSERT INTO oauth_tokens AS o (portal_id, access_token, refresh_token, expires_at, scopes)
VALUES ($1, $2, $3, now() + make_interval(secs => $4), $5)
ON CONFLICT (portal_id) DO UPDATE SET access_token = excluded.access_token, refresh_token = excluded.refresh_token, expires_at = excluded.expires_at, scopes = excluded.scopes,
	version = o.version + 1, refresh_claim = NULL, refresh_until = NULL, last_error = NULL,
	installed_at = now(), updated_at = now()`

// Install keeps the tokens of a portal that was authorized (again).
func (t *Throttle) Install(ctx context.Context, k store.SealedTokens) error {
	err := t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sqlInstall, k.PortalID, k.Access, k.Refresh, k.ExpiresIn.Seconds(), sanitize(k.Scopes))
		return statementFailure(ctx, err)
	})
	if err != nil {
		return fmt.Errorf("keeping the tokens of portal %d: %w", k.PortalID, err)
	}
	return nil
}

const sqlTokens = `
SELECT portal_id, access_token, refresh_token, extract(epoch FROM expires_at - now())::float8,
	extract(epoch FROM expires_at - updated_at)::float8, scopes, version
FROM oauth_tokens WHERE portal_id = $1`

func scanTokens(row pgx.CollectableRow) (k store.SealedTokens, err error) {
	var left, life float64
	err = row.Scan(&k.PortalID, &k.Access, &k.Refresh, &left, &life, &k.Scopes, &k.Version)
	k.ExpiresIn, k.Life = seconds(left), seconds(life)
	return k, err
}

// Tokens returns a portal's tokens, or NotFound.
func (t *Throttle) Tokens(ctx context.Context, portal int64) (k store.SealedTokens, err error) {
	err = t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlTokens, portal)
		if err != nil {
			return err
		}
		k, err = pgx.CollectExactlyOneRow(rows, scanTokens)
		if errors.Is(err, pgx.ErrNoRows) {
			return store.NewError(store.NotFound, "Portal is not installed")
		}
		return err
	})
	if err != nil {
		return k, fmt.Errorf("reading the tokens of portal %d: %w", portal, err)
	}
	return k, nil
}

// sqlBeginRefresh gives the right to refresh to one at a time, and to nobody whose
// tokens are old news.
const sqlBeginRefresh = `
UPDATE oauth_tokens SET refresh_claim = nextval('throttle_claims'), refresh_until = now() + make_interval(secs => $3)
WHERE portal_id = $1 AND version = $2 AND (refresh_until IS NULL OR refresh_until < now())
RETURNING refresh_claim`

// BeginRefresh asks for the right to refresh version of a portal's tokens, for as
// long as lease. It is 0 if somebody else has it, or they are newer by now.
func (t *Throttle) BeginRefresh(ctx context.Context, portal, version int64, lease time.Duration) (claim int64, err error) {
	err = t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		err := c.QueryRow(ctx, sqlBeginRefresh, portal, version, lease.Seconds()).Scan(&claim)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("beginning a refresh for portal %d: %w", portal, err)
	}
	return claim, nil
}

const sqlEndRefresh = `
UPDATE oauth_tokens SET access_token = $3, refresh_token = $4, expires_at = now() + make_interval(secs => $5),
	version = version + 1, refresh_claim = NULL, refresh_until = NULL, last_error = NULL, updated_at = now()
WHERE portal_id = $1 AND refresh_claim = $2
RETURNING version`

// EndRefresh keeps what a refresh brought, unless its right has passed on: it
// never overwrites newer tokens. It returns the new version, 0 if it was late.
func (t *Throttle) EndRefresh(ctx context.Context, claim int64, k store.SealedTokens) (version int64, err error) {
	err = t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		err := c.QueryRow(ctx, sqlEndRefresh, k.PortalID, claim, k.Access, k.Refresh, k.ExpiresIn.Seconds()).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		return 0, fmt.Errorf("keeping the refreshed tokens of portal %d: %w", k.PortalID, err)
	}
	return version, nil
}

const sqlFailRefresh = `
UPDATE oauth_tokens SET refresh_claim = NULL, refresh_until = NULL, last_error = left($3, 1000)
WHERE portal_id = $1 AND refresh_claim = $2`

// FailRefresh gives the right back.
func (t *Throttle) FailRefresh(ctx context.Context, portal, claim int64, why string) error {
	err := t.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sqlFailRefresh, portal, claim, sanitize(why))
		return err
	})
	if err != nil {
		return fmt.Errorf("giving up a refresh for portal %d: %w", portal, err)
	}
	return nil
}
