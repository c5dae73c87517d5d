package postgres

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Files stores the rows of build files, and runs the janitor's other statements. Safe for
// concurrent use.
type Files struct{ db *DB }

// NewFiles returns the files of db.
func NewFiles(db *DB) *Files { return &Files{db: db} }

// commitFiles makes files durable under their names. The transaction that inserts their rows
// commits afterwards.
func commitFiles(ctx context.Context, files []store.Staged) error {
	for _, f := range files {
		if err := f.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// abortFiles removes files to which no row refers.
func abortFiles(ctx context.Context, files []store.Staged) {
	for _, f := range files {
		f.Abort(ctx)
	}
}

// fileColumns holds rows of build_files column by column, as arguments of unnest.
type fileColumns struct {
	kinds, names, locations []string
	sizes                   []int64
	digests                 [][]byte
	objects                 []*string
	due                     []*time.Time
}

func (c *fileColumns) add(kind store.FileKind, f store.File) {
	location, object, due := whereabouts(f)
	c.kinds, c.names, c.sizes = append(c.kinds, string(kind)), append(c.names, f.Name), append(c.sizes, f.Size)
	c.digests = append(c.digests, f.SHA256[:])
	c.locations, c.objects, c.due = append(c.locations, location), append(c.objects, object), append(c.due, due)
}

// whereabouts returns the columns that say where a file is. A pending copy is due
// immediately.
func whereabouts(f store.File) (location string, object *string, due *time.Time) {
	if f.Object != "" {
		object = &f.Object
	}
	if f.CopyPending {
		due = &time.Time{} // the year 1
	}
	return string(cmp.Or(f.Location, store.OnDisk)), object, due
}

const fileRowColumns = `f.build, b.id, f.kind, f.name, f.size, f.sha256, f.location, coalesce(f.object, ''), f.copy_due IS NOT NULL`

func scanFileRow(row pgx.CollectableRow) (f store.FileRow, err error) {
	var digest []byte
	err = row.Scan(&f.Build, &f.BuildID, &f.Kind, &f.Name, &f.Size, &digest, &f.Location, &f.Object, &f.CopyPending)
	copy(f.SHA256[:], digest)
	return f, err
}

func errNoFile() error { return store.NewError(store.NotFound, "File not found") }

const sqlPageFiles = `/* page_files */ SELECT ` + fileRowColumns + `
FROM build_files f JOIN builds b ON b.seq = f.build
WHERE (f.build, f.kind) > ($1, $2) ORDER BY f.build, f.kind LIMIT $3`

// Page returns up to limit files after the key after, in the order of keys. The zero key
// comes before all others.
func (f *Files) Page(ctx context.Context, after store.FileKey, limit int) ([]store.FileRow, error) {
	return rowsOf(ctx, f.db.read("listing files"), scanFileRow, sqlPageFiles, after.Build, string(after.Kind), limit)
}

const sqlPageCerts = `/* page_certs */ SELECT ` + fileRowColumns + `
FROM build_files f JOIN builds b ON b.seq = f.build
WHERE f.build > $1 AND f.kind = 'certs' ORDER BY f.build LIMIT $2`

// PageCerts is like Page for certificates only.
func (f *Files) PageCerts(ctx context.Context, after store.FileKey, limit int) ([]store.FileRow, error) {
	return rowsOf(ctx, f.db.read("listing certificates"), scanFileRow, sqlPageCerts, after.Build, limit)
}

const sqlFindFile = `/* find_file */ SELECT ` + fileRowColumns + `
FROM build_files f JOIN builds b ON b.seq = f.build WHERE f.build = $1 AND f.kind = $2`

// Find returns one file. Error: NotFound.
func (f *Files) Find(ctx context.Context, key store.FileKey) (store.FileRow, error) {
	return rowOf(ctx, f.db.read("finding a file"), errNoFile, scanFileRow, sqlFindFile, key.Build, string(key.Kind))
}

const sqlCountFiles = `/* count_files */ SELECT count(*), coalesce(sum(size), 0)::bigint FROM build_files`

// Count returns how many files there are and how many bytes they have.
func (f *Files) Count(ctx context.Context) (files, bytes int64, err error) {
	err = f.db.read("counting files").scan(ctx, nil, []any{&files, &bytes}, sqlCountFiles)
	return files, bytes, err
}

const sqlCountCerts = `/* count_certs */ SELECT count(*) FROM build_files WHERE kind = 'certs'`

// CountCerts returns how many builds have certificates.
func (f *Files) CountCerts(ctx context.Context) (int, error) {
	return valueOf[int](ctx, f.db.read("counting certificates"), sqlCountCerts)
}

const sqlMoveFile = `/* move_file */
UPDATE build_files SET location = @to, object = nullif(@to_object, ''), copy_due = NULL
WHERE build = @build AND kind = @kind AND location = @from AND coalesce(object, '') = @from_object`

// Move changes the recorded location of a file, whose copy is then no longer pending. If the
// row no longer has the location of from, it changes nothing and returns false.
func (f *Files) Move(ctx context.Context, from store.FileRow, location store.Location, object string) (moved bool, err error) {
	n, err := f.db.write("moving file "+from.Name).exec(ctx, sqlMoveFile, pgx.NamedArgs{
		"build": from.Build, "kind": string(from.Kind), "from": string(from.Location), "from_object": from.Object,
		"to": string(location), "to_object": object,
	})
	return n > 0, err
}

const sqlOwed = `/* owed */ SELECT ` + fileRowColumns + `
FROM build_files f JOIN builds b ON b.seq = f.build
WHERE f.copy_due <= now() AND (f.build, f.kind) > ($1, $2) ORDER BY f.build, f.kind LIMIT $3`

// PendingCopies returns up to limit files after the key after whose copy to S3 is due, in
// the order of keys.
func (f *Files) PendingCopies(ctx context.Context, after store.FileKey, limit int) ([]store.FileRow, error) {
	return rowsOf(ctx, f.db.read("listing pending copies"), scanFileRow, sqlOwed, after.Build, string(after.Kind), limit)
}

const sqlPostponeCopy = `/* postpone_copy */
UPDATE build_files SET copy_due = now() + $3::interval
WHERE build = $1 AND kind = $2 AND (copy_due <= now() OR copy_due IS NOT NULL AND $3::interval = '0')`

// Postpone claims a pending copy that is due, so that PendingCopies does not return it for
// the time wait. It returns false if the copy was not due. A wait of 0 releases the claim.
func (f *Files) Postpone(ctx context.Context, key store.FileKey, wait time.Duration) (due bool, err error) {
	n, err := f.db.write("claiming a pending copy").exec(ctx, sqlPostponeCopy, key.Build, string(key.Kind), wait)
	return n > 0, err
}

const sqlCountOwed = `/* count_owed */ SELECT count(*) FROM build_files WHERE copy_due IS NOT NULL`

// CountPendingCopies returns how many copies are pending.
func (f *Files) CountPendingCopies(ctx context.Context) (int, error) {
	return valueOf[int](ctx, f.db.read("counting pending copies"), sqlCountOwed)
}

const sqlUnnamed = `/* unnamed */
SELECT n FROM unnest($1::text[]) n WHERE NOT EXISTS (
	SELECT FROM build_files WHERE CASE WHEN $2 THEN object = n ELSE name = n AND location <> 's3' END
	UNION ALL
	SELECT FROM diagnostic_reports WHERE CASE WHEN $2 THEN object = n ELSE name = n AND location <> 's3' END)`

// Unnamed returns the names to which no row refers. They are names of local files, or with
// objects keys of objects in S3.
func (f *Files) Unnamed(ctx context.Context, names []string, objects bool) ([]string, error) {
	return rowsOf(ctx, f.db.read("looking for rows of files"), pgx.RowTo[string], sqlUnnamed, names, objects)
}

// IfUnnamed calls remove, at most once, if no row refers to the file or object, and reports
// whether it was removed. Meanwhile it holds the build's lock, which Finish needs too, so
// that no file of the build gets a row.
func (f *Files) IfUnnamed(ctx context.Context, build, name string, object bool, remove func() error) (removed bool, err error) {
	op := f.db.write("removing " + name)
	remove = op.once(remove)
	err = op.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		removed = false
		if _, err := tx.Exec(ctx, sqlLockEnds, []string{build}); err != nil {
			return err
		}
		unnamed, err := collect(ctx, tx, pgx.RowTo[string], sqlUnnamed, []string{name}, object)
		if err != nil || len(unnamed) == 0 {
			return err
		}
		removed = true
		return remove()
	})
	return removed && err == nil, err
}
