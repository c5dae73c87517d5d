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
				failed = errors.Join(failed, j.removeExpired(ctx, row))
			}
			if after = next; next == 0 {
				break
			}
		}
	}
	if failed != nil {
		failed = fmt.Errorf("removing what was kept for long enough: %w", failed)
	}
	return errors.Join(failed, j.expireLogs(ctx))
}

// removeExpired removes what a row named. What is left, on other controllers'
// disks as well, has no row any more: it is found as such.
func (j *Janitor) removeExpired(ctx context.Context, row store.FileRow) error {
	_, err := j.files.Remove(row.Name)
	if row.Object != "" {
		err = errors.Join(err, j.files.RemoveObject(ctx, row.Object))
	}
	if err != nil {
		j.figures.failures.Add(1)
	}
	if isWeather(err) {
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
