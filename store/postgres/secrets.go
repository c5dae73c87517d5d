package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"takt/store"
	"takt/store/seal"
)

// Secrets keeps the values that builds ask for by name. Safe for concurrent use.
type Secrets struct {
	db   *DB
	keys *seal.Ring
}

// NewSecrets returns the secrets of db, which keys seal and open.
func NewSecrets(db *DB, keys *seal.Ring) *Secrets { return &Secrets{db, keys} }

const sqlListSecrets = `/* list_secrets */
SELECT name, all_keys, keys, mask, is_binary, created_by, updated_by, created_at, updated_at FROM secrets ORDER BY name LIMIT 10000`

// List returns the secrets by name, without their values.
func (s *Secrets) List(ctx context.Context) ([]store.Secret, error) {
	return rowsOf(ctx, s.db.read("listing secrets"), pgx.RowToStructByPos[store.Secret], sqlListSecrets)
}

const sqlSetSecret = `/* set_secret */
INSERT INTO secrets AS s (name, sealed, mask, is_binary, all_keys, keys, created_by, updated_by)
SELECT @name, @sealed, @mask, @binary, @all, @keys, @by, @by
WHERE (SELECT count(*) FROM secrets) < @most OR EXISTS (SELECT FROM secrets WHERE name = @name)
ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed, mask = excluded.mask, is_binary = excluded.is_binary,
	all_keys = excluded.all_keys, keys = excluded.keys, updated_by = excluded.updated_by, updated_at = now()
RETURNING name, all_keys, keys, mask, is_binary, created_by, updated_by, created_at, updated_at`

// Set adds a secret, or replaces it with all that it had: who may have a value can't be changed
// without knowing it. x must have been checked. Error: Conflict if there are as many as may be.
func (s *Secrets) Set(ctx context.Context, x store.Secret, value []byte) (store.Secret, error) {
	full := func() error {
		return store.NewError(store.Conflict, "There are as many secrets as there may be: remove one")
	}
	return rowOf(ctx, s.db.write("setting secret "+x.Name), full, pgx.RowToStructByPos[store.Secret], sqlSetSecret, pgx.NamedArgs{
		"name": x.Name, "sealed": s.keys.Seal(seal.Secret, x.Name, value), "mask": x.Mask, "binary": x.Binary,
		"all": x.AllKeys, "keys": append([]string{}, x.Keys...), "by": store.Text(x.UpdatedBy), "most": store.MaxStoredSecrets,
	})
}

const sqlRemoveSecret = `/* remove_secret */ DELETE FROM secrets WHERE name = $1`

// Remove removes a secret. Builds that ask for it fail when they are handed out. Error: NotFound.
func (s *Secrets) Remove(ctx context.Context, name string) error {
	none := func() error { return store.NewError(store.NotFound, "Secret not found") }
	return s.db.write("removing secret "+name).change(ctx, none, sqlRemoveSecret, name)
}

// mayHave is the condition that builds of the key @key, ” for the API key, may have a secret. Those
// of a key that was revoked may have none, also if somebody retries them with a build's token.
const mayHave = `((all_keys OR @key::text <> '' AND @key = ANY (keys)) AND NOT EXISTS (SELECT FROM access_keys a WHERE a.name = @key AND a.revoked_at IS NOT NULL))`

const sqlMayHave = `/* may_have */ SELECT name, is_binary, ` + mayHave + ` FROM secrets WHERE name = ANY (@names)`

// May returns nil if a key, "" for the API key, may submit builds with these secrets, whose values
// say how each is given: as a variable or a file. Errors: UnknownSecret, SecretNotYours,
// InvalidSecret. HandOut decides once more.
func (s *Secrets) May(ctx context.Context, key string, secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(secrets))
	unknown, foreign := slices.Clone(names), []string{}
	var binary []string
	var name string
	var isBinary, may bool
	err := s.db.read("looking up secrets").each(ctx, []any{&name, &isBinary, &may}, func() error {
		unknown = slices.DeleteFunc(unknown, func(n string) bool { return n == name })
		if !may {
			foreign = append(foreign, name)
		}
		if isBinary && secrets[name] != store.SecretFile {
			binary = append(binary, name)
		}
		return nil
	}, sqlMayHave, pgx.NamedArgs{"key": key, "names": names})
	slices.Sort(foreign)
	switch {
	case err != nil:
		return err
	case len(unknown) > 0:
		return store.ErrUnknownSecrets(unknown)
	case len(foreign) > 0:
		return store.ErrSecretNotYours(key, foreign)
	case len(binary) > 0:
		slices.Sort(binary)
		return store.NewError(store.InvalidSecret, "The value of secret "+binary[0]+" is no text: ask for it as a file (--secret-file)")
	}
	return nil
}

const sqlSecretOwner = `/* secret_owner */
SELECT coalesce(r.submitter, '') FROM builds b JOIN builds r ON r.seq = coalesce(b.retry_root, b.seq) WHERE b.seq = (SELECT seq FROM build_ids WHERE id = $1)`

// MayAgain returns nil if a retry of a build may have its secrets. Errors: NotFound for the build,
// SecretGone. HandOut decides once more.
func (s *Secrets) MayAgain(ctx context.Context, build string, secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	op := s.db.read("looking up the secrets of build " + build)
	key, err := rowOf(ctx, op, errNoBuild, pgx.RowTo[string], sqlSecretOwner, build)
	if err != nil {
		return err
	}
	gone := slices.Sorted(maps.Keys(secrets))
	var name string
	var isBinary, may bool
	err = op.each(ctx, []any{&name, &isBinary, &may}, func() error {
		gone = slices.DeleteFunc(gone, func(n string) bool { return n == name && may })
		return nil
	}, sqlMayHave, pgx.NamedArgs{"key": key, "names": slices.Clone(gone)})
	if err == nil && len(gone) > 0 {
		err = store.ErrSecretGone(gone)
	}
	return err
}

const (
	// sqlSecretHolder returns whose secrets a held build has: those of the key that submitted the
	// first of the builds that it repeats. So a name that another key took over since is not given
	// to it, whoever retries the build.
	sqlSecretHolder = `/* secret_holder */
SELECT b.seq, b.attempt, coalesce(r.submitter, '') FROM builds b JOIN builds r ON r.seq = coalesce(b.retry_root, b.seq)
WHERE b.seq = (SELECT seq FROM build_ids WHERE id = @id) AND b.worker_id = @worker AND b.state IN ('assigned', 'building') AND (@attempt = 0 OR b.attempt = @attempt)`

	sqlOpenSecrets = `/* open_secrets */ SELECT name, mask, sealed FROM secrets WHERE name = ANY (@names) AND ` + mayHave + ` ORDER BY name`

	sqlNoteHandout = `/* note_handout */
WITH first AS (
	INSERT INTO secret_handouts (build, attempt, names) VALUES (@build, @attempt, @names) ON CONFLICT DO NOTHING RETURNING build
)
INSERT INTO audit (actor, action, target, reason, detail, outcome) SELECT @actor, 'use secrets', 'build/' || @id, '', @detail, 'done' FROM first`
)

// HandOut returns the values of these secrets for the worker that holds a build. The audit has an
// entry for each attempt, before anything is returned; actor is who asks. Errors: NotAssigned,
// SecretGone if one is missing.
func (s *Secrets) HandOut(ctx context.Context, h store.Heartbeat, names []string, actor string) (values []store.SecretValue, err error) {
	names = slices.Sorted(slices.Values(names))
	err = s.db.write("opening the secrets of build "+h.BuildID).tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var seq int64
		var attempt int
		var key string
		err := tx.QueryRow(ctx, sqlSecretHolder, pgx.NamedArgs{"id": h.BuildID, "worker": h.WorkerID, "attempt": h.Attempt}).Scan(&seq, &attempt, &key)
		if err != nil {
			return orNone(err, func() error { return store.NewError(store.NotAssigned, "Build not assigned to this worker") })
		}
		if values, err = s.open(ctx, tx, names, key); err != nil {
			return err
		}
		detail, err := json.Marshal(map[string]any{"secrets": names, "attempt": attempt, "worker": h.WorkerID, "key": key})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlNoteHandout, pgx.NamedArgs{
			"build": seq, "attempt": attempt, "names": names, "actor": store.Text(actor), "id": h.BuildID, "detail": json.RawMessage(detail),
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return values, nil
}

// open opens all secrets with these names, which builds of key may have.
func (s *Secrets) open(ctx context.Context, tx pgx.Tx, names []string, key string) (values []store.SecretValue, err error) {
	gone := slices.Clone(names)
	rows, _ := tx.Query(ctx, sqlOpenSecrets, pgx.NamedArgs{"names": names, "key": key}) // its error is that of the rows
	var v store.SecretValue
	var sealed []byte
	_, err = pgx.ForEachRow(rows, []any{&v.Name, &v.Mask, &sealed}, func() error {
		content, err := s.keys.Open(seal.Secret, v.Name, sealed)
		switch {
		case errors.Is(err, seal.ErrUnknownKey): // another controller may have it
			return store.NewUnavailable("The encryption key of secret "+v.Name+" is not known here", err)
		case err != nil:
			return nil //nolint:nilerr // it is gone
		}
		gone = slices.DeleteFunc(gone, func(name string) bool { return name == v.Name })
		values = append(values, store.SecretValue{Name: v.Name, Mask: v.Mask, Value: content})
		return nil
	})
	if err == nil && len(gone) > 0 {
		err = store.ErrSecretGone(gone)
	}
	return values, err
}
