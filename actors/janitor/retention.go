package janitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"takt/store"
)

// expireFiles removes the files of builds whose retention is over: first the rows, then
// the files.
func (j *Janitor) expireFiles(ctx context.Context) (failed error) {
	for _, k := range []struct {
		kind  store.FileKind
		age   time.Duration
		count prometheus.Counter
	}{
		{store.SourceFile, j.keep.Source, j.figures.sources},
		{store.CertsFile, j.keep.Certs, j.figures.certs},
		{store.ResultFile, j.keep.Result, j.figures.results},
	} {
		err := pages(k.age, func(after int64) (int64, error) {
			expired, next, err := j.rows.ExpireFiles(ctx, k.kind, k.age, after, batch)
			k.count.Add(float64(len(expired)))
			for _, row := range expired {
				failed = errors.Join(failed, j.removeExpired(ctx, row.File))
			}
			return next, err
		})
		if err != nil {
			return errors.Join(err, failed)
		}
	}
	return failed
}

// expireReports does the same for diagnostic reports.
func (j *Janitor) expireReports(ctx context.Context) (failed error) {
	err := pages(j.keep.Diagnostics, func(int64) (int64, error) {
		expired, err := j.rows.ExpireReports(ctx, j.keep.Diagnostics, batch)
		j.figures.diagnostics.Add(float64(len(expired)))
		for _, file := range expired {
			failed = errors.Join(failed, j.removeExpired(ctx, file))
		}
		return int64(len(expired) / batch), err // 0: that was the last page
	})
	return errors.Join(err, failed)
}

func (j *Janitor) expireLogs(ctx context.Context) error {
	return pages(j.keep.Logs, func(after int64) (int64, error) {
		n, next, err := j.rows.ExpireLogs(ctx, j.keep.Logs, after, batch)
		j.figures.logs.Add(float64(n))
		return next, err
	})
}

// forget removes rows until none are left.
func forget(some func(ctx context.Context, limit int) (removed int64, err error)) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			if n, err := some(ctx, batch); err != nil || n < batch {
				return err
			}
		}
	}
}

// pages calls expire for page after page, until next is 0. An age of 0 keeps
// everything.
func pages(age time.Duration, expire func(after int64) (next int64, err error)) error {
	if age <= 0 {
		return nil
	}
	for after := int64(0); ; {
		next, err := expire(after)
		if err != nil || next == 0 {
			return err
		}
		after = next
	}
}

// removeExpired removes the file and the object that a removed row named. Copies that
// are left, also on other controllers' disks, are removed later as files without a row.
func (j *Janitor) removeExpired(ctx context.Context, file store.File) error {
	_, err := j.files.Remove(file.Name)
	if file.Object != "" {
		err = errors.Join(err, j.files.RemoveObject(ctx, file.Object))
	}
	if err != nil {
		j.figures.failures.Inc()
	}
	if err == nil || store.IsUnavailable(err) {
		return nil
	}
	return fmt.Errorf("removing expired files and rows: %w", err)
}
