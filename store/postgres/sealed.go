package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store/seal"
)

// Sealed reads and replaces the sealed values in the database, to seal them under another
// key. Safe for concurrent use.
type Sealed struct{ db *DB }

// NewSealed returns the sealed values in db.
func NewSealed(db *DB) *Sealed { return &Sealed{db: db} }

// SealedValue is one sealed value.
type SealedValue struct {
	// ID is the id of the row to which the value is bound.
	ID    string
	Value []byte
}

const sqlCountSealed = `/* count_sealed */ SELECT kind, key, count(*) FROM sealed_values GROUP BY kind, key`

// Count returns how many values of each kind each key has sealed.
func (s *Sealed) Count(ctx context.Context) (map[seal.Kind]map[seal.ID]int, error) {
	byKind := map[seal.Kind]map[seal.ID]int{}
	var kind seal.Kind
	var key []byte
	var n int
	err := s.db.read("counting sealed values").each(ctx, []any{&kind, &key, &n}, func() error {
		if byKind[kind] == nil {
			byKind[kind] = map[seal.ID]int{}
		}
		var id seal.ID
		copy(id[:], key)
		byKind[kind][id] = n
		return nil
	}, sqlCountSealed)
	return byKind, err
}

const sqlPageSealed = `/* page_sealed */ SELECT id, sealed FROM sealed_values WHERE kind = $1 AND key <> $2 AND id > $3 ORDER BY id LIMIT $4`

// Page returns up to limit values of a kind that are sealed under a key other than current
// and whose ids come after the id after, in the order of ids.
func (s *Sealed) Page(ctx context.Context, kind seal.Kind, current seal.ID, after string, limit int) ([]SealedValue, error) {
	return rowsOf(ctx, s.db.read("looking for values of old keys"), pgx.RowToStructByPos[SealedValue],
		sqlPageSealed, string(kind), current[:], after, limit)
}

const (
	sqlReplaceCredential   = `/* replace_credential */ UPDATE deployments SET credential = @fresh WHERE id = @id AND credential = @old`
	sqlReplaceAccessToken  = `/* replace_access_token */ UPDATE oauth_tokens SET access_token = @fresh WHERE portal_id = (@id::text)::bigint AND access_token = @old`
	sqlReplaceRefreshToken = `/* replace_refresh_token */ UPDATE oauth_tokens SET refresh_token = @fresh WHERE portal_id = (@id::text)::bigint AND refresh_token = @old`
	sqlReplaceSecrets      = `/* replace_secrets */ UPDATE notice_subscriptions SET secrets = @fresh WHERE id = @id AND secrets = @old`
	sqlReplaceSecret       = `/* replace_secret */ UPDATE secrets SET sealed = @fresh WHERE name = @id AND sealed = @old`
	sqlReplaceKeyCheck     = `/* replace_key_check */ UPDATE key_check SET sealed = @fresh WHERE sealed = @old`
)

// Replace replaces old by fresh in its row. If the row no longer has old, it changes nothing
// and returns false.
func (s *Sealed) Replace(ctx context.Context, kind seal.Kind, old SealedValue, fresh []byte) (done bool, err error) {
	replace := map[seal.Kind]string{
		seal.ForgeCredential: sqlReplaceCredential, seal.AccessToken: sqlReplaceAccessToken,
		seal.RefreshToken: sqlReplaceRefreshToken, seal.NoticeSecrets: sqlReplaceSecrets, seal.Secret: sqlReplaceSecret, seal.KeyCheck: sqlReplaceKeyCheck,
	}[kind]
	n, err := s.db.write(fmt.Sprintf("replacing a %s", kind)).exec(ctx, replace, pgx.NamedArgs{"id": old.ID, "old": old.Value, "fresh": fresh})
	return n == 1, err
}

const (
	sqlAddKeyCheck  = `/* add_key_check */ INSERT INTO key_check (sealed) VALUES ($1) ON CONFLICT DO NOTHING`
	sqlReadKeyCheck = `/* read_key_check */ SELECT sealed FROM key_check`
)

// keyCheckID is the id to which the check value is bound. Any constant would do.
const keyCheckID = "database"

// WithKeyCheck returns a migration that runs steps and then fails if the database was sealed
// under other keys. A new database gets a check value that is sealed under keys.
func WithKeyCheck(keys *seal.Ring, steps ...func(context.Context, *pgx.ConnConfig) error) func(context.Context, *pgx.ConnConfig) error {
	return func(ctx context.Context, cfg *pgx.ConnConfig) error {
		for _, step := range steps {
			if err := step(ctx, cfg); err != nil {
				return err
			}
		}
		return checkKeys(ctx, cfg, keys)
	}
}

func checkKeys(ctx context.Context, cfg *pgx.ConnConfig, keys *seal.Ring) (err error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connecting to check the encryption key: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var sealed []byte
	if _, err = conn.Exec(ctx, sqlAddKeyCheck, keys.Seal(seal.KeyCheck, keyCheckID, nil)); err == nil {
		err = conn.QueryRow(ctx, sqlReadKeyCheck).Scan(&sealed)
	}
	if err != nil {
		return fmt.Errorf("checking the encryption key: %w", err)
	}
	return openKeyCheck(keys, sealed)
}

func openKeyCheck(keys *seal.Ring, sealed []byte) error {
	if _, err := keys.Open(seal.KeyCheck, keyCheckID, sealed); err != nil {
		id, _ := seal.KeyOf(sealed)
		return fmt.Errorf("this database was sealed with the encryption key %s, and the one given is %s: "+
			"start with the former, or add it to TAKT_OLD_ENCRYPTION_KEYS: %w", id, keys.Current(), err)
	}
	return nil
}
