package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"takt/store"
	"takt/store/seal"
)

// HasS3 reports whether there is a bucket, if only to read from.
func (f *Files) HasS3() bool { return f.s3 != nil }

// Probe asks S3 for a sign of life; without S3 all is well.
func (f *Files) Probe(ctx context.Context) error {
	if f.s3 == nil {
		return nil
	}
	return f.s3.Probe(ctx)
}

// WalkObjects calls visit for every object, as Local.Walk does for files.
func (f *Files) WalkObjects(ctx context.Context, visit func(Stored) error) error {
	if f.s3 == nil {
		return nil
	}
	return f.s3.walk(ctx, visit)
}

// RemoveObject removes an object; it is no error if there is none.
func (f *Files) RemoveObject(ctx context.Context, key string) error {
	if f.s3 == nil {
		return errNoS3(key)
	}
	return f.s3.Remove(ctx, key)
}

// storedSize is how many bytes the file of a row has in storage.
func storedSize(row store.FileRow) int64 {
	if row.Sealed() {
		return seal.Size(row.Size)
	}
	return row.Size
}

// CopyToS3 stores the local copy of a file in S3 and returns its key, which no
// row names yet. A local copy that is damaged is not copied. Errors: NotFound if
// this disk does not have the file, ErrDamaged, Unavailable.
func (f *Files) CopyToS3(ctx context.Context, row store.FileRow, moved func(bytes int64)) (key string, err error) {
	if f.s3 == nil {
		return "", errNoS3(row.Name)
	}
	file, err := f.local.openSized(row.Name, storedSize(row))
	if err != nil {
		return "", err
	}
	defer file.Close()
	if err := f.compare(ctx, file, row, moved); err != nil {
		return "", err
	}
	key = objectKey(row.Name)
	if err := f.s3.Put(ctx, key, file, file.Size, nil); err != nil {
		if !f.s3.resting() {
			err = errors.Join(err, f.takeBack(ctx, key))
		}
		return "", err
	}
	return key, nil
}

func (f *Files) takeBack(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), takeBackTimeout, errStalled)
	defer cancel()
	return f.s3.Remove(ctx, key)
}

// CopyToDisk stores the object of a file on the local disk. A damaged object is
// not copied. Errors: NotFound, ErrDamaged, Unavailable, DiskFull.
func (f *Files) CopyToDisk(ctx context.Context, row store.FileRow, moved func(bytes int64)) error {
	if f.s3 == nil {
		return errNoS3(row.Name)
	}
	o, err := f.s3.open(ctx, row.Object)
	if err != nil {
		return err
	}
	defer o.Close() //nolint:errcheck // only read from
	size := storedSize(row)
	if o.size != size {
		return damaged(row.Object, o.size, size)
	}
	u, err := f.local.Create(ctx, size) // as it is: what is sealed stays sealed
	if err != nil {
		return err
	}
	defer u.Discard()
	if _, err := u.ReadFrom(io.TeeReader(o, meter(moved))); err != nil {
		return err
	}
	if _, _, err := u.Finish(); err != nil {
		return err
	}
	file, err := f.local.openSized(u.temporary, size)
	if err != nil {
		return err
	}
	err = f.compare(ctx, file, row, nil)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return u.Commit(row.Name)
}

// compare reads a file and checks that it has the content that row tells of.
func (f *Files) compare(ctx context.Context, file *File, row store.FileRow, moved func(bytes int64)) error {
	content := io.Reader(io.NewSectionReader(file, 0, file.Size))
	if row.Sealed() {
		plain, err := f.local.keys.NewReader(file, file.Size, seal.Certificates, row.Name)
		if seal.Broken(err) {
			return fmt.Errorf("%s: %w: %w", row.Name, err, ErrDamaged)
		}
		if err != nil {
			return err
		}
		content = plain
	}
	sum, err := digest(ctx, io.TeeReader(content, meter(moved)))
	switch {
	case seal.Broken(err):
		return fmt.Errorf("%s: %w: %w", row.Name, err, ErrDamaged)
	case err != nil:
		return fmt.Errorf("reading %s: %w", row.Name, err)
	case sum != row.SHA256:
		return fmt.Errorf("%s has another digest: %w", row.Name, ErrDamaged)
	}
	return nil
}

// meter counts bytes as they pass; nil counts nothing.
type meter func(bytes int64)

func (m meter) Write(p []byte) (int, error) {
	if m != nil {
		m(int64(len(p)))
	}
	return len(p), nil
}

// Check looks at one copy of the file of a row: that it is there and has its
// size, and with content its digest as well. Errors: NotFound, ErrDamaged,
// Unavailable.
func (f *Files) Check(ctx context.Context, row store.FileRow, remote, content bool, moved func(bytes int64)) error {
	size := storedSize(row)
	switch {
	case remote && f.s3 == nil:
		return errNoS3(row.Name)
	case remote && !content:
		got, err := f.s3.Size(ctx, row.Object)
		if err == nil && got != size {
			err = damaged(row.Object, got, size)
		}
		return err
	case remote:
		o, err := f.s3.open(ctx, row.Object)
		if err != nil {
			return err
		}
		defer o.Close() //nolint:errcheck // only read from
		if o.size != size {
			return damaged(row.Object, o.size, size)
		}
		return f.compare(ctx, &File{Content: o, Size: o.size, ModTime: o.modTime}, row, moved)
	}
	file, err := f.local.openSized(row.Name, size)
	if err != nil {
		return err
	}
	defer file.Close()
	if !content {
		return nil
	}
	return f.compare(ctx, file, row, moved)
}

// AbortUploads ends uploads to S3 that were begun before olderThan and never
// ended. It reports how many.
func (f *Files) AbortUploads(ctx context.Context, olderThan time.Duration) (int, error) {
	if f.s3 == nil {
		return 0, nil
	}
	return f.s3.abortUploads(ctx, olderThan)
}
