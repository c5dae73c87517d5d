package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"takt/storage"
	"takt/storage/inventory"
	"takt/store"
	"takt/store/postgres"
)

// InBackup is the location of findings in a directory of backups.
const InBackup store.Location = "backup"

// Verified is the result of Verify.
type Verified struct {
	Backups int64 `json:"backups"`
	Files   int64 `json:"files"`
	Bytes   int64 `json:"bytes"`
	Missing int64 `json:"missing"`
	Damaged int64 `json:"damaged"`
}

// Rows calls row for each file that the dump of m names and that m says it holds. It returns
// the check value of the dump's encryption key.
func (d *Dir) Rows(m Manifest, row func(store.FileRow) error) (keyCheck []byte, err error) {
	absent := map[string]bool{}
	for _, name := range slices.Concat(m.Gone, m.Missing) {
		absent[name] = true
	}
	err = d.ReadDump(m, func(r io.Reader) (err error) {
		keyCheck, err = postgres.ReadDump(r, func(f store.FileRow) error {
			if absent[f.Name] {
				return nil
			}
			return row(f)
		})
		return err
	})
	return keyCheck, err
}

// Verify reads all that the directory holds, and calls found for each file or dump that is
// damaged, and for each file that a dump names and that is missing.
func (d *Dir) Verify(ctx context.Context, found func(inventory.Finding)) (Verified, error) {
	var sum Verified
	report := func(f inventory.Finding) {
		f.Location = InBackup
		if f.Problem == inventory.Missing {
			sum.Missing++
		} else {
			sum.Damaged++
		}
		found(f)
	}
	all, err := d.List()
	bad := map[string]bool{}
	if err == nil {
		err = d.walk(ctx, func(path string, info fs.FileInfo) error {
			sum.Files, sum.Bytes = sum.Files+1, sum.Bytes+info.Size()
			got, err := digestOf(path)
			if err == nil && !strings.HasSuffix(path, got) {
				bad[path] = true
				report(inventory.Finding{Problem: inventory.Damaged, Name: path, Size: info.Size(), Detail: "remove it, and the next backup copies it again"})
			}
			return err
		})
	}
	for _, m := range all {
		if err != nil {
			return sum, err
		}
		sum.Backups++
		_, failed := d.Rows(m, func(row store.FileRow) error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if !slices.ContainsFunc(d.Find(row), func(path string) bool { return !bad[path] }) {
				report(inventory.Finding{Problem: inventory.Missing, Name: row.Name, Build: row.BuildID, Kind: row.Kind, Size: row.Size, Detail: "of " + m.Name})
			}
			return nil
		})
		switch {
		case errors.Is(failed, storage.ErrDamaged), errors.Is(failed, fs.ErrNotExist):
			report(inventory.Finding{Problem: inventory.Damaged, Name: filepath.Join(d.path, m.Name+dumpSuffix), Detail: "this backup can't be restored: " + failed.Error()})
		default:
			err = failed
		}
	}
	return sum, err
}

// walk calls visit for each file that is kept.
func (d *Dir) walk(ctx context.Context, visit func(path string, info fs.FileInfo) error) error {
	return filepath.WalkDir(filepath.Join(d.path, filesDir), func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return visit(path, info)
	})
}

func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Prune removes all backups but the newest keep, and files that none of these names. It
// returns how many backups it removed.
func (d *Dir) Prune(ctx context.Context, keep int) (removed int, err error) {
	all, err := d.List()
	if err != nil || len(all) <= keep {
		return 0, err
	}
	old, all := all[:len(all)-keep], all[len(all)-keep:]
	named := map[string]bool{} // the first half of each digest, which is enough
	for _, m := range all {
		if _, err := d.Rows(m, func(row store.FileRow) error {
			named[hex.EncodeToString(row.SHA256[:16])] = true
			return nil
		}); err != nil {
			return 0, err
		}
	}
	for _, m := range old {
		if err := os.Remove(filepath.Join(d.path, m.Name+manifestSuffix)); err != nil {
			return removed, fmt.Errorf("removing a backup: %w", err)
		}
		removed++
		if err := os.Remove(filepath.Join(d.path, m.Name+dumpSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, fmt.Errorf("removing a backup: %w", err)
		}
	}
	return removed, d.walk(ctx, func(path string, _ fs.FileInfo) error {
		if name := filepath.Base(path); len(name) < 32 || named[name[:32]] {
			return nil
		}
		return os.Remove(path)
	})
}
