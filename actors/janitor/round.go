package janitor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"takt/storage"
	"takt/store"
)

// batch is how many files or rows one query handles.
const batch = 500

// round tidies up once. An outage ends it; other failures end a part of it.
func (j *Janitor) round(ctx context.Context) error {
	var failed error
	var parts []func(context.Context) error
	if j.files != nil {
		parts = append(parts, j.sweepDisk)
	}
	mine, err := j.rows.ClaimChores(ctx, j.interval*9/10)
	if err != nil {
		return err
	}
	if mine {
		parts = append(parts, forget(j.rows.ForgetWrongKeys))
	}
	if mine && j.files != nil {
		parts = append(parts, j.expireFiles, j.expireReports, j.expireLogs, forget(j.rows.ForgetKeys), j.sweepS3)
	}
	for _, part := range parts {
		err := part(ctx)
		if store.IsUnavailable(err) || ctx.Err() != nil {
			return err
		}
		failed = errors.Join(failed, err)
	}
	j.figures.rounds.Inc()
	return failed
}

// sweepDisk removes temporary files and files that no row names from this controller's
// disk.
func (j *Janitor) sweepDisk(ctx context.Context) error {
	n, err := j.files.SweepTemporary(minAge)
	j.figures.temporary.Add(float64(n))
	if err != nil {
		j.figures.failures.Inc()
	}
	err = errors.Join(err, j.sweepOrphans(ctx, j.files.Walk, false))
	if store.IsUnavailable(err) {
		return err
	}
	_, empty := j.files.RemoveEmpty(ctx, minAge)
	return errors.Join(err, empty)
}

// sweepS3 removes unfinished uploads and objects that no row names from S3.
func (j *Janitor) sweepS3(ctx context.Context) error {
	if !j.files.HasS3() {
		return nil
	}
	n, err := j.files.AbortUploads(ctx, minAge)
	j.figures.temporary.Add(float64(n))
	if err != nil {
		return err
	}
	return j.sweepOrphans(ctx, j.files.WalkObjects, true)
}

// sweepOrphans walks through files or objects and removes the old ones that no
// row names.
func (j *Janitor) sweepOrphans(ctx context.Context, walk func(context.Context, func(storage.Stored) error) error, objects bool) error {
	var old []string
	var failed error
	flush := func() error {
		if len(old) == 0 {
			return nil
		}
		unnamed, err := j.rows.Unnamed(ctx, old, objects)
		old = old[:0]
		if err != nil {
			return err
		}
		for _, name := range unnamed {
			err := j.removeOrphan(ctx, name, objects)
			if store.IsUnavailable(err) || ctx.Err() != nil {
				return err
			}
			if err != nil {
				j.figures.failures.Inc()
				failed = errors.Join(failed, err)
			}
		}
		return nil
	}
	err := walk(ctx, func(s storage.Stored) error {
		if time.Since(s.ModTime) < minAge {
			return nil
		}
		if old = append(old, s.Name); len(old) < batch {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return err
	}
	return failed
}

// removeOrphan removes a file or object that no row names. It first checks the row again,
// and the age again, because a new file may have the same name by now.
func (j *Janitor) removeOrphan(ctx context.Context, name string, object bool) error {
	gone := true
	removed, err := j.rows.IfUnnamed(ctx, buildOf(name), name, object, func() error {
		if object {
			return j.files.RemoveObject(ctx, name)
		}
		s, err := j.files.Stat(name)
		if store.CodeOf(err) == store.NotFound || err == nil && time.Since(s.ModTime) < minAge {
			gone = false
			return nil
		}
		if err == nil {
			_, err = j.files.Remove(name)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("removing files that no row names: %w", err)
	}
	if removed && gone {
		j.figures.orphans.Inc()
	}
	return nil
}

// buildOf is the id of the build whose directory name is in, "" if it is in none.
func buildOf(name string) string {
	rest, ok := strings.CutPrefix(name, "builds/")
	id, _, deeper := strings.Cut(rest, "/")
	if !ok || !deeper || !store.ValidID(id) {
		return ""
	}
	return id
}
