package inventory

import (
	"context"
	"errors"
	"fmt"

	"takt/storage"
	"takt/store"
)

// MigrateOptions say where files should be.
type MigrateOptions struct {
	To storage.Mode
	// Prune removes each other copy after the copy that stays was read and verified. It
	// can't be used with ModeDual.
	Prune bool
}

// Migrated is the result of Migrate.
type Migrated struct {
	Files  int64 `json:"files"`
	Copied int64 `json:"copied"`
	Bytes  int64 `json:"bytes"` // copied
	Pruned int64 `json:"pruned"`
	// Failed counts files without a good copy, on this disk or in S3.
	Failed int64 `json:"failed"`
}

// Migrate copies every file to the location where it should be, if it is not there, and
// updates its row. It calls found for each file without a good copy.
func (i Inventory) Migrate(ctx context.Context, o MigrateOptions, found func(Finding)) (Migrated, error) {
	var sum Migrated
	if !i.Files.HasS3() {
		return sum, errors.New("migrating: S3 is not configured")
	}
	if o.Prune && o.To == storage.ModeDual {
		return sum, errors.New("migrating: dual storage keeps both copies")
	}
	err := i.each(ctx, func(row store.FileRow) error {
		sum.Files++
		err := i.migrate(ctx, &row, o, &sum)
		if err == nil {
			return nil
		}
		from := store.OnDisk
		if row.Location == store.InS3 || row.Location == store.InBoth && o.To == storage.ModeS3 {
			from = store.InS3
		}
		f, ok := finding(row, from, err)
		if !ok {
			return err
		}
		if changed, err := i.changed(ctx, row); changed || err != nil {
			return err
		}
		sum.Failed++
		found(f)
		return nil
	})
	return sum, err
}

func (i Inventory) migrate(ctx context.Context, row *store.FileRow, o MigrateOptions, sum *Migrated) error {
	if o.To != storage.ModeLocal && !row.Location.Remote() {
		if done, err := i.toS3(ctx, row, sum); !done || err != nil {
			return err
		}
	}
	if o.To != storage.ModeS3 && !row.Location.Local() {
		if done, err := i.toDisk(ctx, row, sum); !done || err != nil {
			return err
		}
	}
	if o.Prune && row.Location == store.InBoth {
		return i.prune(ctx, *row, o.To, sum)
	}
	return nil
}

// toS3 stores a file in S3. done is false if somebody else changed the row.
func (i Inventory) toS3(ctx context.Context, row *store.FileRow, sum *Migrated) (done bool, err error) {
	key, err := i.Files.CopyToS3(ctx, *row)
	if err != nil {
		return false, err
	}
	moved, err := i.Rows.Move(ctx, *row, store.InBoth, key)
	if err != nil {
		return false, err // the row may name the object: if not, the janitor removes it
	}
	if !moved {
		return false, i.Files.RemoveObject(ctx, key)
	}
	sum.Copied++
	sum.Bytes += row.Size
	row.Location, row.Object, row.CopyPending = store.InBoth, key, false
	return true, nil
}

// toDisk stores a file on the local disk. done is false if somebody else changed the
// row.
func (i Inventory) toDisk(ctx context.Context, row *store.FileRow, sum *Migrated) (done bool, err error) {
	if err := i.Files.CopyToDisk(ctx, *row); err != nil {
		return false, err
	}
	moved, err := i.Rows.Move(ctx, *row, store.InBoth, row.Object)
	if err != nil || !moved {
		return false, err // the janitor removes the copy if no row names it
	}
	sum.Copied++
	sum.Bytes += row.Size
	row.Location = store.InBoth
	return true, nil
}

// prune removes the copy that is no longer wanted, after the other copy was read. It
// changes the row first, because a copy that the row does not name may be lost.
func (i Inventory) prune(ctx context.Context, row store.FileRow, to storage.Mode, sum *Migrated) error {
	if err := i.Files.Check(ctx, row, to == storage.ModeS3, true); err != nil {
		return err
	}
	if to == storage.ModeS3 {
		moved, err := i.Rows.Move(ctx, row, store.InS3, row.Object)
		if err != nil || !moved {
			return err
		}
		if _, err := i.Files.Remove(row.Name); err != nil {
			return fmt.Errorf("pruning: %w", err)
		}
	} else {
		moved, err := i.Rows.Move(ctx, row, store.OnDisk, "")
		if err != nil || !moved {
			return err
		}
		if err := i.Files.RemoveObject(ctx, row.Object); err != nil {
			return fmt.Errorf("pruning: %w", err)
		}
	}
	sum.Pruned++
	return nil
}
