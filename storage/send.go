package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"takt/store"
)

// takeBackTimeout is for the removal of an object that no row will name. What
// is not removed by then is left to the sweep.
const takeBackTimeout = 5 * time.Second

// Send brings a finished upload to where it belongs, as far as no transaction is
// needed for it, and returns how the row has to describe the file. With S3 that
// is the whole way, and may take long; moved is called as bytes go, and may be
// nil. Errors: Unavailable.
func (u *Upload) Send(ctx context.Context, name string, moved func(now time.Time)) (store.File, error) {
	if !u.finished || u.temporary == "" {
		return store.File{}, fmt.Errorf("sending upload: %w", fs.ErrClosed)
	}
	if err := checkName(name); err != nil {
		return store.File{}, fmt.Errorf("sending upload: %w", err)
	}
	file := store.File{Name: name, Size: u.size, SHA256: u.digest, Location: store.OnDisk}
	mode := ModeLocal
	if u.to != nil {
		mode = u.to.mode
	}
	switch mode {
	case ModeS3:
		if err := u.put(ctx, &file, moved); err != nil {
			return store.File{}, err
		}
		file.Location = store.InS3
	case ModeDual:
		if err := u.putSecond(ctx, &file, moved); err != nil {
			return store.File{}, err
		}
	case ModeLocal:
	}
	u.sent = &file
	return file, nil
}

// put stores the upload under a key of its own.
func (u *Upload) put(ctx context.Context, file *store.File, moved func(now time.Time)) error {
	s3, key := u.to.s3, objectKey(file.Name)
	f, err := u.local.Open(u.temporary)
	if err != nil {
		return err
	}
	defer f.Close()
	// Whether S3 took it or not: what was begun is not to stay.
	u.takeBack = func() {
		if s3.resting() {
			return // the sweep finds it
		}
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), takeBackTimeout, errStalled)
		defer cancel()
		_ = s3.Remove(ctx, key) // likewise
	}
	if err := s3.Put(ctx, key, f, f.Size, moved); err != nil {
		return err
	}
	file.Object = key
	return nil
}

// errImpatient is why a second copy was given up.
var errImpatient = errors.New("the second copy takes too long")

// putSecond stores the second copy, if S3 takes it soon; else it is owed.
func (u *Upload) putSecond(ctx context.Context, file *store.File, moved func(now time.Time)) error {
	file.CopyPending = true
	if u.to.s3.resting() {
		return nil
	}
	limit, cancel := context.WithTimeoutCause(ctx, u.to.patience, errImpatient)
	defer cancel()
	err := u.put(limit, file, moved)
	if err == nil {
		file.Location, file.CopyPending = store.InBoth, false
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	if errors.Is(err, errImpatient) {
		u.to.s3.state.Store(&S3State{At: time.Now(), Err: err})
	}
	u.takeBack = nil // whoever just failed is not asked for more: the sweep finds it
	return nil
}
