package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"takt/store"
)

// inputsColumn reads the inputs of a build b. Only builds that say so have a row.
const inputsColumn = `CASE WHEN b.has_inputs THEN (SELECT row_to_json(i)::text FROM build_inputs i WHERE i.build = b.seq) END`

// attemptsLeft reports whether a build of the table builds has attempts left after it has lost
// another one. $3 is how many a build has that was submitted without a number. Those that workers
// gave back count only for builds that were submitted with one.
const attemptsLeft = `CASE WHEN has_inputs
		THEN coalesce((SELECT lost + given_back + 1 < max_attempts FROM build_inputs WHERE build = seq), lost + 1 < $3)
		ELSE lost + 1 < $3 END`

// sqlInsertInputs adds the inputs of builds that were just added. Root is NULL in rows that have
// facts only, which a controller of the release before may leave out.
const sqlInsertInputs = `/* insert_inputs */
INSERT INTO build_inputs (build, root, params, params_optional, secrets, timeout_s, max_attempts, retry_on, facts)
SELECT b.seq, CASE WHEN i.binds THEN coalesce(b.retry_root, b.seq) END, i.params, i.optional, i.secrets, nullif(i.timeout, 0), nullif(i.attempts, 0)::smallint,
	i.retries::smallint[], i.facts
FROM unnest(@ids::text[], @binds::bool[], @params::jsonb[], @optional::bool[], @secrets::jsonb[], @timeouts::int[], @attempts::int[], @retries::text[], @facts::jsonb[])
	AS i(id, binds, params, optional, secrets, timeout, attempts, retries, facts)
JOIN build_ids n ON n.id = i.id JOIN builds b ON b.seq = n.seq`

// insertInputs adds the inputs of those builds that have some.
func insertInputs(ctx context.Context, tx pgx.Tx, all []*addition) error {
	var ids []string
	var binds, optional []bool
	var params, secrets, facts []any
	var timeouts, attempts []int
	var retries []*string
	for _, a := range all {
		i := a.Inputs
		if i.Empty() {
			continue
		}
		ids, binds, optional = append(ids, a.ID), append(binds, i.Bind()), append(optional, i.ParamsOptional)
		params, secrets = append(params, orNil(i.Params)), append(secrets, orNil(i.Secrets))
		timeouts, attempts = append(timeouts, int(i.Timeout/time.Second)), append(attempts, i.MaxAttempts)
		retries = append(retries, smallInts(i.RetryOn))
		if facts = append(facts, any(i.Facts)); i.Facts == (store.Facts{}) {
			facts[len(facts)-1] = nil
		}
	}
	if len(ids) == 0 {
		return nil
	}
	tag, err := tx.Exec(ctx, sqlInsertInputs, pgx.NamedArgs{
		"ids": ids, "binds": binds, "params": params, "optional": optional, "secrets": secrets,
		"timeouts": timeouts, "attempts": attempts, "retries": retries, "facts": facts,
	})
	return allWritten(tag, len(ids), err)
}

// allWritten returns err, or an error if a statement did not write all rows.
func allWritten(tag pgconn.CommandTag, rows int, err error) error {
	if n := tag.RowsAffected(); err == nil && n != int64(rows) {
		err = fmt.Errorf("the inputs of %d of %d builds were written", n, rows)
	}
	return err
}

// orNil returns nil, which is NULL, for an empty map.
func orNil[M ~map[string]string](m M) any {
	if len(m) == 0 {
		return nil
	}
	return m
}

// smallInts returns an array as PostgreSQL writes it, nil for an empty one.
func smallInts(numbers []int) *string {
	if len(numbers) == 0 {
		return nil
	}
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.Itoa(n)
	}
	text := "{" + strings.Join(texts, ",") + "}"
	return &text
}
