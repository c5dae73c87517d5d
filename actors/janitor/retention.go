package janitor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"takt/store"
)

// expire removes what has been kept for long enough: first the rows, then what
// they named.
func (j *Janitor) expire(ctx context.Context) error {
	keep := j.cfg.Keep
	var failed error
	for _, k := range []struct {
		kind  store.FileKind
		age   time.Duration
		count *atomic.Int64
	}{
		{store.SourceFile, keep.Source, &j.figures.sources},
		{store.CertsFile, keep.Certs, &j.figures.certs},
		{store.ResultFile, keep.Result, &j.figures.results},
	} {
		if k.age <= 0 {
			continue
		}
		for after := int64(0); ; {
			expired, next, err := j.rows.ExpireFiles(ctx, k.kind, k.age, after, batch)
			if err != nil {
				return err
			}
			k.count.Add(int64(len(expired)))
			for _, row := range expired {
				failed = errors.Join(failed, j.removeExpired(ctx, row.File))
			}
			if after = next; next == 0 {
				break
			}
		}
	}
	reports, err := j.expireReports(ctx)
	if err != nil {
		return err
	}
	if failed = errors.Join(failed, reports); failed != nil {
		failed = fmt.Errorf("removing what was kept for long enough: %w", failed)
	}
	return errors.Join(failed, j.expireLogs(ctx))
}

// removeExpired removes what a row named. What is left, on other controllers'
// disks as well, has no row any more: it is found as such.
func (j *Janitor) removeExpired(ctx context.Context, file store.File) error {
	_, err := j.files.Remove(file.Name)
	if file.Object != "" {
		err = errors.Join(err, j.files.RemoveObject(ctx, file.Object))
	}
	if err != nil {
		j.figures.failures.Add(1)
	}
	if store.IsUnavailable(err) {
		return nil
	}
	return err
}

func (j *Janitor) expireLogs(ctx context.Context) error {
	if j.cfg.Keep.Logs <= 0 {
		return nil
	}
	for after := int64(0); ; {
		n, next, err := j.rows.ExpireLogs(ctx, j.cfg.Keep.Logs, after, batch)
		if err != nil {
			return err
		}
		j.figures.logs.Add(int64(n))
		if after = next; next == 0 {
			return nil
		}
	}
}

// expireReports fails with err if there is no going on; failed are those of
// single files.
func (j *Janitor) expireReports(ctx context.Context) (failed, err error) {
	if j.cfg.Keep.Diagnostics <= 0 {
		return nil, nil
	}
	for {
		expired, err := j.rows.ExpireReports(ctx, j.cfg.Keep.Diagnostics, batch)
		if err != nil {
			return failed, err
		}
		j.figures.diagnostics.Add(int64(len(expired)))
		for _, file := range expired {
			failed = errors.Join(failed, j.removeExpired(ctx, file))
		}
		if len(expired) < batch {
			return failed, nil
		}
	}
}
