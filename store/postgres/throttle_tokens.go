package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlInstall also makes running refreshes of the previous tokens lose their claim.
const sqlInstall = `/* install */
INSERT INTO oauth_tokens AS o (portal_id, access_token, refresh_token, expires_at, scopes)
VALUES (@portal, @access, @refresh, now() + make_interval(secs => @seconds), @scopes)
ON CONFLICT (portal_id) DO UPDATE SET access_token = excluded.access_token,
	refresh_token = excluded.refresh_token, expires_at = excluded.expires_at, scopes = excluded.scopes,
	version = o.version + 1, refresh_claim = NULL, refresh_until = NULL, last_error = NULL,
	installed_at = now(), updated_at = now()`

// Install stores the tokens of a portal that was authorized, or authorized again.
func (t *Throttle) Install(ctx context.Context, k store.SealedTokens) error {
	_, err := t.db.write(fmt.Sprintf("keeping the tokens of portal %d", k.PortalID)).exec(ctx, sqlInstall, pgx.NamedArgs{
		"portal": k.PortalID, "access": k.Access, "refresh": k.Refresh, "seconds": k.ExpiresIn.Seconds(),
		"scopes": store.Text(k.Scopes),
	})
	return err
}

const sqlTokens = `/* tokens */
SELECT portal_id, access_token, refresh_token, expires_at - now(), expires_at - updated_at, scopes, version
FROM oauth_tokens WHERE portal_id = $1`

// Tokens returns a portal's tokens. Error: NotFound.
func (t *Throttle) Tokens(ctx context.Context, portal int64) (store.SealedTokens, error) {
	return rowOf(ctx, t.db.read(fmt.Sprintf("reading the tokens of portal %d", portal)), errNotInstalled,
		pgx.RowToStructByPos[store.SealedTokens], sqlTokens, portal)
}

func errNotInstalled() error { return store.NewError(store.NotFound, "Portal is not installed") }

// sqlBeginRefresh lets one caller at a time claim the refresh of the current version of the
// tokens.
const sqlBeginRefresh = `/* begin_refresh */
UPDATE oauth_tokens SET refresh_claim = nextval('throttle_claims'), refresh_until = now() + make_interval(secs => $3)
WHERE portal_id = $1 AND version = $2 AND (refresh_until IS NULL OR refresh_until < now())
RETURNING refresh_claim`

// BeginRefresh claims the right to refresh a portal's tokens of this version, for the time
// lease, and returns the claim. It returns 0 if another caller has the right or the tokens
// have another version.
func (t *Throttle) BeginRefresh(ctx context.Context, portal, version int64, lease time.Duration) (int64, error) {
	return valueOf[int64](ctx, t.db.write(fmt.Sprintf("beginning a refresh for portal %d", portal)), sqlBeginRefresh, portal, version, lease.Seconds())
}

const sqlEndRefresh = `/* end_refresh */
UPDATE oauth_tokens SET access_token = @access, refresh_token = @refresh, expires_at = now() + make_interval(secs => @seconds),
	version = version + 1, refresh_claim = NULL, refresh_until = NULL, last_error = NULL, updated_at = now()
WHERE portal_id = @portal AND refresh_claim = @claim
RETURNING version`

// EndRefresh stores refreshed tokens and returns their version. If the claim was lost, it
// stores nothing, because the tokens may be newer, and returns 0.
func (t *Throttle) EndRefresh(ctx context.Context, claim int64, k store.SealedTokens) (int64, error) {
	return valueOf[int64](ctx, t.db.write(fmt.Sprintf("keeping the refreshed tokens of portal %d", k.PortalID)), sqlEndRefresh, pgx.NamedArgs{
		"portal": k.PortalID, "claim": claim, "access": k.Access, "refresh": k.Refresh, "seconds": k.ExpiresIn.Seconds(),
	})
}

const sqlFailRefresh = `/* fail_refresh */
UPDATE oauth_tokens SET refresh_claim = NULL, refresh_until = NULL, last_error = left($3, 1000)
WHERE portal_id = $1 AND refresh_claim = $2`

// FailRefresh releases the claim of a refresh that failed and records why. If the claim was
// lost, it does nothing.
func (t *Throttle) FailRefresh(ctx context.Context, portal, claim int64, why string) error {
	_, err := t.db.write(fmt.Sprintf("giving up a refresh for portal %d", portal)).exec(ctx, sqlFailRefresh, portal, claim, store.ErrorText(why))
	return err
}
