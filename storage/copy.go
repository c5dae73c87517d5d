package storage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"time"

	"takt/store"
	"takt/store/seal"
)

// HasS3 reports whether a bucket is configured, even if only for reading.
func (f *Files) HasS3() bool { return f.s3 != nil }

// Probe checks that S3 answers. It returns nil without S3.
func (f *Files) Probe(ctx context.Context) error {
	if f.s3 == nil {
		return nil
	}
	return f.s3.Probe(ctx)
}

// WalkObjects calls visit for every object in S3, as Walk does for local files.
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

// AbortUploads aborts uploads to S3 that were begun before olderThan and never
// completed. It returns how many.
func (f *Files) AbortUploads(ctx context.Context, olderThan time.Duration) (int, error) {
	if f.s3 == nil {
		return 0, nil
	}
	return f.s3.abortUploads(ctx, olderThan)
}

// Restore stores a copy of a row's file, taken by OpenCopy, where the mode says. In S3 its
// key is its name and suffix, and is not in the row. Errors: ErrDamaged, Unavailable,
// DiskFull.
func (f *Files) Restore(ctx context.Context, row store.FileRow, suffix string, content Content) error {
	size := StoredSize(row)
	if err := f.Compare(ctx, &File{Content: content, Size: size}, row); err != nil {
		return err
	}
	if f.mode == ModeS3 {
		return f.s3.Put(ctx, row.Name+suffix, content, size, nil)
	}
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("restoring %s: %w", row.Name, err)
	}
	u, err := f.Local.Create(ctx, size, "", content)
	if err != nil {
		return err
	}
	defer u.Discard()
	if err := checkName(row.Name); err != nil {
		return err
	}
	return u.rename(row.Name)
}

// StoredSize returns how many bytes the file of a row has in storage.
func StoredSize(row store.FileRow) int64 {
	if row.Sealed() {
		return seal.Size(row.Size)
	}
	return row.Size
}

// CopyToS3 stores the local copy of a file in S3 and returns its new key, which the
// caller has to write to the row. It does not copy a damaged local copy. Errors:
// NotFound if this disk does not have the file, ErrDamaged, Unavailable.
func (f *Files) CopyToS3(ctx context.Context, row store.FileRow) (key string, err error) {
	if f.s3 == nil {
		return "", errNoS3(row.Name)
	}
	file, err := f.openSized(row.Name, StoredSize(row))
	if err != nil {
		return "", err
	}
	defer file.Close()
	if err := f.Compare(ctx, file, row); err != nil {
		return "", err
	}
	return f.s3.putNew(ctx, row.Name, file, nil)
}

// CopyToDisk stores the object of a file on the local disk. It does not copy a damaged
// object. Errors: NotFound, ErrDamaged, Unavailable, DiskFull.
func (f *Files) CopyToDisk(ctx context.Context, row store.FileRow) error {
	size := StoredSize(row)
	o, err := f.openObject(ctx, row.File, size)
	if err != nil {
		return err
	}
	defer o.Close()
	u, err := f.Local.Create(ctx, size, "", o) // sealed content stays sealed
	if err != nil {
		return err
	}
	defer u.Discard()
	file, err := f.openSized(u.temporary, size)
	if err != nil {
		return err
	}
	err = f.Compare(ctx, file, row)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return u.rename(row.Name)
}

// Compare reads a file and checks that its content has the row's digest.
func (f *Files) Compare(ctx context.Context, file *File, row store.FileRow) error {
	content := io.Reader(io.NewSectionReader(file, 0, file.Size))
	var err error
	if row.Sealed() {
		content, err = f.keys.NewReader(file, file.Size, seal.Certificates, row.Name)
	}
	var sum [sha256.Size]byte
	if err == nil {
		sum, err = digest(ctx, content)
	}
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

// digest returns the SHA-256 of all of r.
func digest(ctx context.Context, r io.Reader) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	buf := make([]byte, parallelFrom)
	for {
		if ctx.Err() != nil {
			return sum, context.Cause(ctx)
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			h.Sum(sum[:0])
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}

// Check checks that one copy of the file of a row exists and has its size. With content
// it also checks the digest. Errors: NotFound, ErrDamaged, Unavailable.
func (f *Files) Check(ctx context.Context, row store.FileRow, remote, content bool) error {
	size := StoredSize(row)
	if remote && !content {
		if f.s3 == nil {
			return errNoS3(row.Name)
		}
		got, err := f.s3.Size(ctx, row.Object)
		if err == nil && got != size {
			err = damaged(row.Object, got, size)
		}
		return err
	}
	file, err := f.OpenCopy(ctx, row, remote)
	if err != nil {
		return err
	}
	defer file.Close()
	if !content {
		return nil
	}
	return f.Compare(ctx, file, row)
}
