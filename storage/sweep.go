package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
)

// Stored is a file or an object in storage, whether or not a row names it.
type Stored struct {
	// Name is the path of a file or the key of an object.
	Name string
	// Size is in bytes, as stored.
	Size    int64
	ModTime time.Time
}

// kept are the directories of committed files.
var kept = []string{"builds", "diagnostics"}

// Walk calls visit for every committed file on the local disk, directory by directory.
// An error of visit ends the walk. Files that are removed meanwhile are skipped.
func (l *Local) Walk(ctx context.Context, visit func(Stored) error) error {
	for _, dir := range kept {
		err := fs.WalkDir(l.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil || !d.Type().IsRegular() {
				return gone(err)
			}
			info, err := d.Info()
			if err != nil {
				return gone(err)
			}
			return visit(Stored{Name: name, Size: info.Size(), ModTime: info.ModTime()})
		})
		if err != nil {
			return fmt.Errorf("walking through files: %w", err)
		}
	}
	return nil
}

// gone returns nil if err says that something does not exist, else err.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Stat returns the size and time of a file on the local disk. Error: NotFound.
func (l *Local) Stat(name string) (Stored, error) {
	info, err := l.root.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Stored{}, failure("looking at a file", err)
	}
	return Stored{Name: name, Size: info.Size(), ModTime: info.ModTime()}, nil
}

// Remove removes a committed file from the local disk and reports whether it existed.
// It is no error if it did not.
func (l *Local) Remove(name string) (bool, error) {
	err := l.root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("removing a file: %w", err)
	}
	return true, nil
}

// RemoveEmpty removes empty directories of builds and workers that were last changed
// longer than olderThan ago. It returns how many.
func (l *Local) RemoveEmpty(ctx context.Context, olderThan time.Duration) (int, error) {
	removed := 0
	for _, dir := range kept {
		entries, err := fs.ReadDir(l.root.FS(), dir)
		if err != nil {
			return removed, fmt.Errorf("removing empty directories: %w", err)
		}
		for _, e := range entries {
			if ctx.Err() != nil {
				return removed, context.Cause(ctx)
			}
			info, err := e.Info()
			if err != nil || !info.IsDir() || time.Since(info.ModTime()) < olderThan {
				continue
			}
			if l.root.Remove(path.Join(dir, e.Name())) == nil { // fails for directories with files
				removed++
			}
		}
	}
	return removed, nil
}

// walk calls visit for every object under takt's prefix.
func (s *S3) walk(ctx context.Context, visit func(Stored) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // ends the listing when visit has enough
	for _, dir := range kept {
		for o := range s.client.ListObjectsIter(ctx, s.cfg.Bucket, minio.ListObjectsOptions{Prefix: s.cfg.Prefix + dir + "/", Recursive: true}) {
			if o.Err != nil {
				return s.failure(ctx, "listing objects", o.Err)
			}
			if err := visit(Stored{Name: strings.TrimPrefix(o.Key, s.cfg.Prefix), Size: o.Size, ModTime: o.LastModified}); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// abortUploads aborts multipart uploads that were begun before olderThan, because their
// takt was killed. It returns how many.
func (s *S3) abortUploads(ctx context.Context, olderThan time.Duration) (int, error) {
	aborted := 0
	for _, dir := range kept {
		key, id := "", ""
		for {
			page, err := s.client.ListMultipartUploads(ctx, s.cfg.Bucket, s.cfg.Prefix+dir+"/", key, id, "", 1000)
			if err != nil {
				return aborted, s.failure(ctx, "listing unfinished uploads", err)
			}
			for _, u := range page.Uploads {
				if time.Since(u.Initiated) < olderThan {
					continue
				}
				if err := s.client.AbortMultipartUpload(ctx, s.cfg.Bucket, u.Key, u.UploadID); err != nil {
					return aborted, s.failure(ctx, "ending an unfinished upload", err)
				}
				aborted++
			}
			if !page.IsTruncated {
				break
			}
			key, id = page.NextKeyMarker, page.NextUploadIDMarker
		}
	}
	return aborted, nil
}
