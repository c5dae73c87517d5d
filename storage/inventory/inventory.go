package inventory

import (
	"context"
	"errors"
	"time"

	"takt/storage"
	"takt/store"
)

// Rows is the rows of files in the database; *postgres.Files implements it.
type Rows interface {
	Page(ctx context.Context, after store.FileKey, limit int) ([]store.FileRow, error)
	Find(ctx context.Context, key store.FileKey) (store.FileRow, error)
	Count(ctx context.Context) (files, bytes int64, err error)
	Unnamed(ctx context.Context, names []string, objects bool) ([]string, error)
	Move(ctx context.Context, from store.FileRow, location store.Location, object string) (bool, error)
}

// Inventory works on one database and one storage.
type Inventory struct {
	Rows  Rows
	Files *storage.Files
	// Progress is called with the bytes checked so far and their total; may be nil.
	Progress func(done, total int64)
}

// page is how many rows are read at once.
const page = 500

// Problem is the kind of fault of a file.
type Problem string

// The problems. Unnamed is not a fault: the janitor removes such files.
const (
	Missing Problem = "missing" // a row names it, but it does not exist
	Damaged Problem = "damaged" // its size or content differs
	Unnamed Problem = "unnamed" // no row names it
)

// Finding is a file with a problem.
type Finding struct {
	Problem Problem `json:"problem"`
	// Location is "local" or "s3".
	Location store.Location `json:"place"`
	// Name is the path of the file or the key of the object.
	Name   string         `json:"name"`
	Build  string         `json:"build,omitempty"`
	Kind   store.FileKind `json:"kind,omitempty"`
	Size   int64          `json:"size"`
	Detail string         `json:"detail,omitempty"`
}

// finding describes the problem of one copy of row; false if err is not about the file.
func finding(row store.FileRow, location store.Location, err error) (Finding, bool) {
	f := Finding{Location: location, Name: row.Name, Build: row.BuildID, Kind: row.Kind, Size: row.Size}
	if location == store.InS3 {
		f.Name = row.Object
	}
	switch {
	case errors.Is(err, storage.ErrDamaged):
		f.Problem, f.Detail = Damaged, err.Error()
	case store.CodeOf(err) == store.NotFound:
		f.Problem = Missing
	default:
		return Finding{}, false
	}
	return f, true
}

// each calls visit for every row.
func (i Inventory) each(ctx context.Context, visit func(store.FileRow) error) error {
	_, total, err := i.Rows.Count(ctx)
	if err != nil {
		return err
	}
	var done int64
	var after store.FileKey
	for {
		rows, err := i.Rows.Page(ctx, after, page)
		if err != nil || len(rows) == 0 {
			return err
		}
		for _, row := range rows {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := visit(row); err != nil {
				return err
			}
			after = row.FileKey
			done += row.Size
			if i.Progress != nil {
				i.Progress(done, max(done, total))
			}
		}
	}
}

// changed reports whether a row has changed since it was read, because somebody moved
// or removed the file.
func (i Inventory) changed(ctx context.Context, row store.FileRow) (bool, error) {
	now, err := i.Rows.Find(ctx, row.FileKey)
	if store.CodeOf(err) == store.NotFound {
		return true, nil
	}
	return now.Location != row.Location || now.Object != row.Object, err
}

// VerifyOptions say how thorough Verify is.
type VerifyOptions struct {
	// Digest makes Verify read every byte.
	Digest bool
	// AnyCopy accepts one good copy if a row names two. It is for several controllers
	// with a disk each.
	AnyCopy bool
	// Age is how old a file without a row must be to be reported, because a younger one
	// may still get its row. Defaults to 1 hour.
	Age time.Duration
}

// Verified is the result of Verify.
type Verified struct {
	Files   int64 `json:"files"`
	Bytes   int64 `json:"bytes"`
	Missing int64 `json:"missing"`
	Damaged int64 `json:"damaged"`
	Unnamed int64 `json:"unnamed"`
}

// Verify checks that every file that a row names is where the row says, and looks for
// files that no row names. It calls found for each problem.
func (i Inventory) Verify(ctx context.Context, o VerifyOptions, found func(Finding)) (Verified, error) {
	if o.Age == 0 {
		o.Age = time.Hour
	}
	var sum Verified
	report := func(f Finding) {
		switch f.Problem {
		case Missing:
			sum.Missing++
		case Damaged:
			sum.Damaged++
		case Unnamed:
			sum.Unnamed++
		}
		found(f)
	}
	err := i.each(ctx, func(row store.FileRow) error {
		sum.Files++
		sum.Bytes += row.Size
		return i.verify(ctx, row, o, report)
	})
	if err == nil {
		err = i.unnamed(ctx, store.OnDisk, o.Age, report)
	}
	if err == nil && i.Files.HasS3() {
		err = i.unnamed(ctx, store.InS3, o.Age, report)
	}
	return sum, err
}

// verify checks every copy of one file.
func (i Inventory) verify(ctx context.Context, row store.FileRow, o VerifyOptions, report func(Finding)) error {
	var findings []Finding
	good := 0
	for _, location := range []store.Location{store.OnDisk, store.InS3} {
		if location == store.OnDisk && !row.Location.Local() || location == store.InS3 && !row.Location.Remote() {
			continue
		}
		err := i.Files.Check(ctx, row, location == store.InS3, o.Digest)
		if err == nil {
			good++
			continue
		}
		f, ok := finding(row, location, err)
		if !ok {
			return err
		}
		findings = append(findings, f)
	}
	if len(findings) == 0 || o.AnyCopy && good > 0 {
		return nil
	}
	if changed, err := i.changed(ctx, row); changed || err != nil {
		return err // it was moved or removed during the check
	}
	for _, f := range findings {
		report(f)
	}
	return nil
}

// unnamed reports files that no row names.
func (i Inventory) unnamed(ctx context.Context, location store.Location, age time.Duration, report func(Finding)) error {
	old := map[string]storage.Stored{}
	flush := func() error {
		names := make([]string, 0, len(old))
		for name := range old {
			names = append(names, name)
		}
		unnamed, err := i.Rows.Unnamed(ctx, names, location == store.InS3)
		for _, name := range unnamed {
			report(Finding{Problem: Unnamed, Location: location, Name: name, Size: old[name].Size})
		}
		clear(old)
		return err
	}
	walk := i.Files.Walk
	if location == store.InS3 {
		walk = i.Files.WalkObjects
	}
	err := walk(ctx, func(s storage.Stored) error {
		if time.Since(s.ModTime) < age {
			return nil
		}
		if old[s.Name] = s; len(old) < page {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}
