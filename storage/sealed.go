package storage

import (
	"context"
	"errors"
	"fmt"

	"takt/store"
	"takt/store/seal"
)

// OpenSealed opens a sealed file that a row names and returns its plain content.
func (f *Files) OpenSealed(ctx context.Context, file store.File) (sealed *SealedFile, err error) {
	for range reopenings {
		if sealed, err = f.openSealed(ctx, file); !errors.Is(err, errReplaced) {
			break
		}
	}
	if seal.Broken(err) && file.Location == store.InBoth {
		file.Location = store.InS3 // the copy on this disk may be sealed with a key that was replaced long ago
		return f.OpenSealed(ctx, file)
	}
	return sealed, err
}

func (f *Files) openSealed(ctx context.Context, file store.File) (*SealedFile, error) {
	raw, err := f.open(ctx, file, seal.Size(file.Size))
	if err != nil {
		return nil, err
	}
	r, err := f.keys.NewReader(raw, raw.Size, seal.Certificates, file.Name)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening sealed file %s: %w", file.Name, err), raw.Close())
	}
	return &SealedFile{
		Reader: r, file: raw, Size: r.Size(), ModTime: raw.ModTime,
		again: func() (*SealedFile, error) { return f.OpenSealed(ctx, file) },
	}, nil
}

// OpenCopy opens the copy on this disk, or the one in S3, without unsealing it.
func (f *Files) OpenCopy(ctx context.Context, row store.FileRow, remote bool) (*File, error) {
	if remote {
		return f.openObject(ctx, row.File, StoredSize(row))
	}
	return f.openSized(row.Name, StoredSize(row))
}

// KeyOf returns the id of the key that sealed a copy of a file. Errors: NotFound,
// ErrDamaged, Unavailable.
func (f *Files) KeyOf(ctx context.Context, row store.FileRow, remote bool) (seal.ID, error) {
	file, err := f.OpenCopy(ctx, row, remote)
	if err != nil {
		return seal.ID{}, err
	}
	defer file.Close()
	head := make([]byte, seal.HeadSize)
	if _, err := file.ReadAt(head, 0); err != nil {
		return seal.ID{}, fmt.Errorf("reading the head of %s: %w", row.Name, err)
	}
	return seal.KeyOf(head)
}

// Reseal replaces a copy of a file by one that is sealed with the current key. Name and
// key stay the same. The replacement is one rename, or one request to S3, so at every
// moment one complete copy exists. The new copy is read before the replacement. Errors:
// NotFound, ErrDamaged, seal.ErrUnknownKey, Unavailable, DiskFull.
func (f *Files) Reseal(ctx context.Context, row store.FileRow, remote bool) error {
	old, err := f.OpenCopy(ctx, row, remote)
	if err != nil {
		return err
	}
	defer old.Close()
	plain, err := f.keys.NewReader(old, old.Size, seal.Certificates, row.Name)
	if err != nil {
		return fmt.Errorf("opening sealed file %s: %w", row.Name, err)
	}
	u, err := f.Local.Create(ctx, row.Size, row.Name, plain)
	if err != nil {
		return err
	}
	defer u.Discard()
	fresh, err := f.openSized(u.temporary, StoredSize(row))
	if err != nil {
		return err
	}
	defer fresh.Close()
	if err := f.Compare(ctx, fresh, row); err != nil {
		return err
	}
	if remote {
		return f.s3.Put(ctx, row.Object, fresh, fresh.Size, nil)
	}
	return u.rename(row.Name)
}
