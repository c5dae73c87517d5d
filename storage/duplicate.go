package storage

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"takt/store"
)

// Duplicate returns an upload that is finished and has the content of the
// committed file name; what is left is to Commit it. Where the file system has hard
// links no byte is copied. A sealed file opens with its own binding only: read
// it and seal it anew instead. Error: NotFound.
func (l *Local) Duplicate(ctx context.Context, name string) (*Upload, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("duplicating file: %w", context.Cause(ctx))
	}
	f, err := l.Open(name) // a regular file
	if err != nil {
		return nil, err
	}
	defer f.Close()
	temporary := path.Join(temporaryDir, rand.Text()+".part")
	err = l.root.Link(name, temporary)
	if err == nil {
		// Both names have the same time now. The sweeper of temporary files must
		// not take this one for a leftover.
		now := time.Now()
		if err := l.root.Chtimes(temporary, now, now); err != nil {
			return nil, errors.Join(failure("duplicating file", err), l.root.Remove(temporary))
		}
		return &Upload{local: l, temporary: temporary, finished: true, size: f.Size, hash: sha256.New()}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failure("duplicating file", err)
	}
	return l.copyOf(ctx, f) // no links here, or too many of this file
}

// copyOf is Duplicate byte by byte.
func (l *Local) copyOf(ctx context.Context, f *File) (*Upload, error) {
	u, err := l.Create(ctx, f.Size)
	if err != nil {
		return nil, err
	}
	if _, err = u.ReadFrom(struct{ io.Reader }{f}); err == nil {
		_, _, err = u.Finish()
	}
	if err != nil {
		u.Discard()
		return nil, fmt.Errorf("duplicating file: %w", err)
	}
	return u, nil
}

// Duplicate returns an upload that is finished and has the content of a plain
// file that a row names; what is left is to Send and Commit it. A file on the
// local disk is not read for it. Errors: NotFound, Unavailable.
func (f *Files) Duplicate(ctx context.Context, file store.File) (*Upload, error) {
	var u *Upload
	err := error(nil)
	if stat, serr := f.local.Stat(file.Name); serr == nil && stat.Size == file.Size && file.Location.Local() {
		u, err = f.local.Duplicate(ctx, file.Name)
	} else {
		u, err = f.fetch(ctx, file)
	}
	if err != nil {
		return nil, err
	}
	u.to, u.digest = f, file.SHA256
	return u, nil
}

// fetch is Duplicate for a file that is elsewhere.
func (f *Files) fetch(ctx context.Context, file store.File) (*Upload, error) {
	from, err := f.Open(ctx, file)
	if err != nil {
		return nil, err
	}
	u, err := f.local.copyOf(ctx, from)
	if err == nil && u.digest != file.SHA256 {
		u.Discard()
		err = fmt.Errorf("duplicating %s: its digest is another: %w", file.Name, ErrDamaged)
	}
	return u, errors.Join(err, from.Close())
}
