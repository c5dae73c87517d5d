package postgres

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ReadRevokedKeys returns the names of the keys that are revoked in a dump; spent enrolment tokens
// are.
func ReadRevokedKeys(r io.Reader) (names []string, err error) {
	d := newDump(r)
	for {
		_, table, err := d.next()
		if err != nil || table == "" {
			return names, err
		}
		m := copyStatement.FindStringSubmatch(table)
		if m == nil || m[1] != "access_keys" {
			_, err = io.Copy(io.Discard, d)
		} else {
			err = d.each(m[2], func(row map[string]string) error {
				if row["revoked_at"] != "" {
					names = append(names, strings.Clone(row["name"]))
				}
				return nil
			})
		}
		if err != nil {
			return nil, err
		}
	}
}

const (
	sqlRevokedKeys = `/* revoked_keys */ SELECT name FROM access_keys WHERE revoked_at IS NOT NULL`

	// sqlKeepRevoked revokes the keys $1 and all enrolment tokens.
	sqlKeepRevoked = `/* keep_revoked */ UPDATE access_keys SET revoked_at = now()
WHERE revoked_at IS NULL AND (name = ANY ($1) OR 'enroll' = ANY (scopes)) AND (expires_at IS NULL OR expires_at > now()) RETURNING name`

	sqlValidKeys = `/* valid_keys */ SELECT name FROM access_keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) ORDER BY name`
)

// RevokedKeys returns the names of the keys that are revoked in a database of takt.
func RevokedKeys(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	names, err := collect(ctx, conn, pgx.RowTo[string], sqlRevokedKeys)
	if err != nil {
		return nil, fmt.Errorf("reading the revoked keys: %w", err)
	}
	return names, nil
}

// RestoredKeys says what became of the keys with names in a restored database.
type RestoredKeys struct {
	// Revoked has the names of keys that were revoked after the backup.
	Revoked []string
	// Revive leaves keys as the backup has them.
	Revive bool
	// Kept and Valid are results: the names of those that are revoked again, with all enrolment
	// tokens, because one that was spent since the backup looks unused; and of the valid ones.
	Kept, Valid []string
}

func (k *RestoredKeys) finish(ctx context.Context, tx pgx.Tx) error {
	var known bool // a backup of an earlier release has no keys
	err := tx.QueryRow(ctx, `SELECT to_regclass('access_keys') IS NOT NULL`).Scan(&known)
	if err != nil || !known {
		return err
	}
	if !k.Revive {
		if k.Kept, err = collect(ctx, tx, pgx.RowTo[string], sqlKeepRevoked, append([]string{}, k.Revoked...)); err != nil {
			return err
		}
	}
	k.Valid, err = collect(ctx, tx, pgx.RowTo[string], sqlValidKeys)
	return err
}
