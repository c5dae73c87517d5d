package janitor

import (
	"context"
	"errors"
	"fmt"

	"takt/storage"
	"takt/store"
)

// copies checks whether S3 answers, and copies the files to it that are due and on this
// disk.
func (j *Janitor) copies(ctx context.Context) error {
	if err := j.files.Probe(ctx); err != nil {
		return err
	}
	err := j.copyAll(ctx)
	if n, cerr := j.rows.CountPendingCopies(ctx); cerr == nil {
		j.figures.pendingCopies.Set(float64(n))
	} else {
		err = errors.Join(err, cerr)
	}
	return err
}

func (j *Janitor) copyAll(ctx context.Context) error {
	var after store.FileKey
	var failed error
	for {
		rows, err := j.rows.PendingCopies(ctx, after, batch)
		if err != nil || len(rows) == 0 {
			return errors.Join(err, failed)
		}
		for _, row := range rows {
			after = row.FileKey
			err := j.copyOne(ctx, row)
			if store.IsUnavailable(err) || ctx.Err() != nil {
				return err
			}
			if err != nil {
				j.figures.copyFailures.Inc()
				failed = errors.Join(failed, err)
			}
		}
	}
}

// copyOne copies one file to S3.
func (j *Janitor) copyOne(ctx context.Context, row store.FileRow) error {
	if _, err := j.files.Stat(row.Name); store.CodeOf(err) == store.NotFound {
		return nil // another controller's disk has it
	}
	due, err := j.rows.Postpone(ctx, row.FileKey, copyLease)
	if err != nil || !due {
		return err // another controller copies it
	}
	key, err := j.files.CopyToS3(ctx, row)
	switch {
	case store.CodeOf(err) == store.NotFound:
		return nil // it has expired and was removed
	case store.IsUnavailable(err) || ctx.Err() != nil:
		_, perr := j.rows.Postpone(context.WithoutCancel(ctx), row.FileKey, 0)
		return errors.Join(err, perr)
	case errors.Is(err, storage.ErrDamaged):
		return fmt.Errorf("a file to be copied to S3 is damaged: %w", err)
	case err != nil:
		return err
	}
	moved, err := j.rows.Move(ctx, row, store.InBoth, key)
	if err == nil && !moved {
		return j.files.RemoveObject(ctx, key) // the row was changed or removed meanwhile
	}
	if err == nil {
		j.figures.copied.Inc()
	}
	return err // the row may name the object; if not, the sweep removes it
}
