package postgres

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"takt/store"
	"takt/store/seal"
)

// dump reads the plain format of pg_dump: SQL, in which the rows of each table follow a COPY
// statement. next reads the SQL, Read the rows of one table.
type dump struct {
	in     *bufio.Reader
	schema string // that the dump would create
	rest   []byte // what Read has not returned of the current line
	within bool   // the line goes on after rest
	ended  bool   // the end of the table's rows was read
}

func newDump(r io.Reader) *dump { return &dump{in: bufio.NewReaderSize(r, 256<<10)} }

// next returns the SQL up to the next table's rows, and the COPY statement that they follow
// or "" at the end of the dump. The previous table's rows must have been read. It leaves out
// commands of psql, comments, and the creation of the schema, which exists already.
func (d *dump) next() (sql []byte, table string, err error) {
	for {
		line, err := d.in.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return sql, "", nil
		}
		if err != nil {
			return nil, "", truncated(err)
		}
		schema, creates := bytes.CutPrefix(line, []byte("CREATE SCHEMA "))
		switch {
		case creates:
			d.schema = strings.TrimSuffix(string(schema), ";\n")
		case bytes.HasPrefix(line, []byte("COPY ")) && bytes.HasSuffix(line, []byte(" FROM stdin;\n")):
			d.rest, d.within, d.ended = nil, false, false
			return sql, strings.TrimSpace(string(line)), nil
		case !bytes.HasPrefix(line, []byte(`\`)) && !bytes.HasPrefix(line, []byte("--")):
			sql = append(sql, line...)
		}
	}
}

// truncated returns the error for a dump that can't be read to its end.
func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("reading the dump: %w", err)
}

// Read implements io.Reader for the rows of one table.
func (d *dump) Read(p []byte) (n int, err error) {
	for n < len(p) && !d.ended {
		if len(d.rest) == 0 {
			line, err := d.in.ReadSlice('\n')
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return n, truncated(err)
			}
			d.ended = !d.within && string(line) == "\\.\n"
			d.rest, d.within = line, err != nil
			continue
		}
		k := copy(p[n:], d.rest)
		n, d.rest = n+k, d.rest[k:]
	}
	if n == 0 && d.ended {
		return 0, io.EOF
	}
	return n, nil
}

var copyStatement = regexp.MustCompile(`^COPY \S+\.(\w+) \((.*)\) FROM stdin;$`)

// each calls f for each row of a table, with the values by column. It undoes no escapes of
// COPY, so it is only for tables without texts that need them.
func (d *dump) each(columns string, f func(row map[string]string) error) error {
	names := strings.Split(columns, ", ")
	row := map[string]string{}
	rows := bufio.NewScanner(d)
	for rows.Scan() {
		for i, value := range strings.Split(rows.Text(), "\t") {
			row[names[min(i, len(names)-1)]] = strings.TrimPrefix(strings.TrimPrefix(value, `\\x`), `\N`)
		}
		if err := f(row); err != nil {
			return err
		}
	}
	return rows.Err()
}

// ReadDump calls file for each row of build_files in a dump. It returns the check value of
// the encryption key, nil if the dump has none.
func ReadDump(r io.Reader, file func(store.FileRow) error) (keyCheck []byte, err error) {
	d := newDump(r)
	for {
		_, table, err := d.next()
		if err != nil || table == "" {
			return keyCheck, err
		}
		m := copyStatement.FindStringSubmatch(table)
		switch {
		case m != nil && m[1] == "build_files":
			err = d.each(m[2], func(row map[string]string) error {
				f, err := dumpedFile(row)
				if err != nil {
					return fmt.Errorf("reading the dump: a file's row: %w", err)
				}
				return file(f)
			})
		case m != nil && m[1] == "key_check":
			err = d.each(m[2], func(row map[string]string) (err error) {
				keyCheck, err = hex.DecodeString(row["sealed"])
				return err
			})
		default:
			_, err = io.Copy(io.Discard, d)
		}
		if err != nil {
			return nil, err
		}
	}
}

func dumpedFile(row map[string]string) (f store.FileRow, err error) {
	f.Kind, f.Name, f.Location, f.Object = store.FileKind(row["kind"]), row["name"], store.Location(row["location"]), row["object"]
	if parts := strings.Split(f.Name, "/"); len(parts) > 2 {
		f.BuildID = parts[1]
	}
	_, err = fmt.Sscan(row["build"]+" "+row["size"], &f.Build, &f.Size)
	digest, failed := hex.DecodeString(row["sha256"])
	copy(f.SHA256[:], digest)
	return f, errors.Join(err, failed)
}

// OpensKeyCheck returns an error if keys can't open the check value from ReadDump.
func OpensKeyCheck(keys *seal.Ring, keyCheck []byte) error {
	if keyCheck == nil {
		return nil
	}
	return openKeyCheck(keys, keyCheck)
}

const sqlOccupied = `/* occupied */
SELECT coalesce(quote_ident(current_schema()), ''), coalesce((
	SELECT c.relname FROM pg_class c WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		AND c.relkind IN ('r', 'p', 'v') AND NOT EXISTS (
		SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
	ORDER BY c.relname LIMIT 1), '')`

// ErrOccupied says that a database is not empty.
var ErrOccupied = errors.New("the database is not empty")

// Vacant returns an error unless the current schema of conn exists and is empty; it wraps
// ErrOccupied if there is a table or view that belongs to no extension.
func Vacant(ctx context.Context, conn *pgx.Conn) error {
	var schema, table string
	switch err := conn.QueryRow(ctx, sqlOccupied).Scan(&schema, &table); {
	case err != nil:
		return fmt.Errorf("looking whether the database is empty: %w", err)
	case schema == "":
		return errors.New("the database has no schema to put tables into: name one that exists with search_path in its URL")
	case table != "":
		return fmt.Errorf("%w: schema %s has the table %s", ErrOccupied, schema, store.Line(table))
	}
	return nil
}

// Unused returns an error if a controller is connected to the database of conn.
func Unused(ctx context.Context, conn *pgx.Conn) error {
	var n int
	if err := conn.QueryRow(ctx, sqlControllers).Scan(&n); err != nil {
		return fmt.Errorf("counting controllers: %w", err)
	}
	if n > 0 {
		return fmt.Errorf("%d controllers use this database: stop takt serve first", n)
	}
	return nil
}

const sqlSearchPath = `/* search_path */ SELECT set_config('search_path', $1, false)`

// Load loads a dump into the empty database of conn, calls finish and commits, all in one
// transaction: if Load fails or is interrupted, the database stays empty. Only an error of
// the commit itself leaves the outcome unknown, and its text says so.
func Load(ctx context.Context, conn *pgx.Conn, r io.Reader, finish func(context.Context, pgx.Tx) error) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("filling the database: %w", err)
	}
	defer rollback(ctx, tx)
	var schema, table string
	if err := tx.QueryRow(ctx, sqlOccupied).Scan(&schema, &table); err != nil {
		return fmt.Errorf("filling the database: %w", err)
	}
	d := newDump(r)
	for {
		sql, table, err := d.next()
		if err != nil {
			return err
		}
		if d.schema != "" && d.schema != schema {
			return fmt.Errorf("the dump is of the schema %q, and this database's is %q: name the former with search_path in its URL", d.schema, schema)
		}
		if _, err := conn.PgConn().Exec(ctx, string(sql)).ReadAll(); err != nil {
			return fmt.Errorf("filling the database: %w", err)
		}
		if table == "" {
			break
		}
		if _, err := conn.PgConn().CopyFrom(ctx, d, table); err != nil {
			return fmt.Errorf("filling the database: %s: %w", table, err)
		}
	}
	if _, err := tx.Exec(ctx, sqlSearchPath, schema); err != nil { // the dump leaves it empty
		return fmt.Errorf("filling the database: %w", err)
	}
	if err := finish(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("filling the database, whose outcome is not known: %w", err)
	}
	return nil
}

// Restored says where the files of a restored database are.
type Restored struct {
	// Location of all files.
	Location store.Location
	// Suffix is appended to the name of a file to make the key of its object.
	Suffix string
	// CopyPending marks all files for copying to S3, which the janitor does later.
	CopyPending bool
	// Lost has the names of the files that were not restored. Their rows are deleted.
	Lost []string
	// Report writes the file of a diagnostic report. Backups leave these files out, because
	// they can be made from the rows.
	Report func(store.DiagnosticReport) error
	// Keys are the keys with names, if not nil.
	Keys *RestoredKeys
	// Audit is appended to the audit.
	Audit store.AuditEntry
}

// sqlFailLost fails the builds that have not ended and whose source or certificates are lost.
const sqlFailLost = `/* fail_lost */
WITH lost AS (
	SELECT DISTINCT b.seq, b.worker_id, b.state FROM builds b JOIN build_files f ON f.build = b.seq
	WHERE f.name = ANY ($1) AND f.kind IN ('source', 'certs') AND b.state IN ('pending', 'assigned', 'building')
), w AS (
	UPDATE workers SET held = held - n.lost,
		status = CASE WHEN held > n.lost THEN 'building' WHEN status = 'offline' THEN 'offline' ELSE 'idle' END
	FROM (SELECT worker_id, count(*)::int AS lost FROM lost WHERE state <> 'pending' GROUP BY worker_id) n WHERE workers.id = n.worker_id
)
UPDATE builds SET state = 'failed', ended = 'file_lost', completed_at = now(), updated_at = now(), error_message = 'A file of the build was not in the backup'
FROM lost WHERE builds.seq = lost.seq`

const (
	sqlForgetLost    = `/* forget_lost */ DELETE FROM build_files WHERE name = ANY ($1)`
	sqlPlaceFiles    = `/* place_files */ UPDATE build_files SET location = $1, object = name || nullif($2, ''), copy_due = CASE WHEN $3 THEN '-infinity'::timestamptz END`
	sqlPlaceReports  = `/* place_reports */ UPDATE diagnostic_reports SET location = $1, object = name || nullif($2, '')`
	sqlAllReports    = `/* all_reports */ SELECT ` + reportColumns + ` FROM diagnostic_reports ORDER BY seq`
	sqlRenewIdentity = `/* renew_identity */ UPDATE settings SET value = to_jsonb(gen_random_uuid()::text), updated_at = now() WHERE key = 'installation'`
)

// Finish records where the files are and gives the database a new installation id, as
// RenewInstallation does. It is the last argument of Load.
func (r Restored) Finish(ctx context.Context, tx pgx.Tx) error {
	batch := &pgx.Batch{}
	batch.Queue(sqlFailLost, r.Lost)
	batch.Queue(sqlForgetLost, r.Lost)
	batch.Queue(sqlPlaceFiles, string(r.Location), r.Suffix, r.CopyPending)
	batch.Queue(sqlPlaceReports, string(r.Location), r.Suffix)
	batch.Queue(sqlAllReports).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			report, err := scanReport(rows)
			if err == nil {
				err = r.Report(report)
			}
			if err != nil {
				return err
			}
		}
		return rows.Err()
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("recording where files are: %w", err)
	}
	if r.Keys != nil {
		if err := r.Keys.finish(ctx, tx); err != nil {
			return fmt.Errorf("revoking keys: %w", err)
		}
	}
	return RenewInstallation(ctx, tx, r.Audit)
}

// RenewInstallation gives the database a new installation id and appends audit. That voids
// all workers' tokens, because after a restore the numbers in them may be given to other
// workers. No controller may be connected.
func RenewInstallation(ctx context.Context, tx pgx.Tx, audit store.AuditEntry) error {
	tag, err := tx.Exec(ctx, sqlRenewIdentity)
	if err == nil && tag.RowsAffected() == 0 {
		err = errors.New("this is no database of takt")
	}
	if err == nil {
		_, err = tx.Exec(ctx, sqlAppendAudit, auditArgs(audit))
	}
	if err != nil {
		return fmt.Errorf("giving the database a new installation id: %w", err)
	}
	return nil
}
