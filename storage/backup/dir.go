package backup

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"takt/storage"
	"takt/store"
	"takt/store/seal"
)

// Manifest describes a backup.
type Manifest struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
	// Takt is the version that made it.
	Takt string `json:"takt"`
	// KeyCheck opens only with the encryption key that is needed to restore it; Key is that
	// key's id.
	KeyCheck []byte `json:"key_check"`
	Key      string `json:"encryption_key"`
	// Dump is the SHA-256 of the dump, as it is on the disk.
	Dump string `json:"dump_sha256"`
	// Files and Bytes count the files that the dump names and the backup holds.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
	// Gone names files that the dump names and that were removed or replaced before they
	// could be copied. Missing names those of which there was no good copy.
	Gone    []string `json:"gone"`
	Missing []string `json:"missing"`
}

const (
	unfinished     = ".unfinished-"
	dumpSuffix     = ".sql.gz"
	manifestSuffix = ".json"
	filesDir       = "files"
)

// Dir is a directory of backups.
type Dir struct {
	path    string
	changed map[string]bool // directories whose entries are not durable yet
}

// Open returns the directory of backups at path.
func Open(path string) *Dir { return &Dir{path: path, changed: map[string]bool{}} }

// List returns the manifests of all complete backups, the oldest first. It is an error if
// there is none.
func (d *Dir) List() (all []Manifest, err error) {
	names, err := filepath.Glob(filepath.Join(d.path, "*"+manifestSuffix))
	if err != nil {
		return nil, fmt.Errorf("looking for backups: %w", err)
	}
	for _, path := range names { // sorted
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading a manifest: %w", err)
		}
		var m Manifest
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, fmt.Errorf("%s is damaged: %w", path, err)
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s holds no complete backup", d.path)
	}
	return all, nil
}

// Begin makes the directory and removes what interrupted backups left unfinished.
func (d *Dir) Begin() error {
	if err := os.MkdirAll(filepath.Join(d.path, filesDir), 0o700); err != nil {
		return fmt.Errorf("making the directory of backups: %w", err)
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("looking for backups: %w", err)
	}
	for _, e := range entries {
		name, isDump := strings.CutSuffix(e.Name(), dumpSuffix)
		if isDump {
			_, err := os.Lstat(filepath.Join(d.path, name+manifestSuffix))
			isDump = errors.Is(err, fs.ErrNotExist)
		}
		if isDump || strings.HasPrefix(e.Name(), unfinished) {
			if err := os.Remove(filepath.Join(d.path, e.Name())); err != nil {
				return fmt.Errorf("removing an unfinished backup: %w", err)
			}
		}
	}
	return nil
}

// put makes a file durable and gives it the name that write returns.
func (d *Dir) put(write func(f *os.File) (name string, err error)) error {
	f, err := os.CreateTemp(d.path, unfinished+"*")
	if err != nil {
		return fmt.Errorf("writing to the backup: %w", err)
	}
	defer os.Remove(f.Name()) // gone already after the rename
	name, err := write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	to := filepath.Join(d.path, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fmt.Errorf("writing to the backup: %w", err)
	}
	d.changed[d.path], d.changed[filepath.Join(d.path, filesDir)], d.changed[filepath.Dir(to)] = true, true, true
	if err := os.Rename(f.Name(), to); err != nil {
		return fmt.Errorf("writing to the backup: %w", err)
	}
	return nil
}

// sync makes the entries of changed directories durable.
func (d *Dir) sync() error {
	for path := range d.changed {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("syncing the backup: %w", err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("syncing the backup: %w", err)
		}
	}
	clear(d.changed)
	return nil
}

// Dump keeps what write writes as the dump of m.
func (d *Dir) Dump(m *Manifest, write func(w io.Writer) error) error {
	return d.put(func(f *os.File) (string, error) {
		sum := sha256.New()
		zip, err := gzip.NewWriterLevel(io.MultiWriter(f, sum), gzip.BestSpeed)
		if err == nil {
			err = errors.Join(write(zip), zip.Close())
		}
		m.Dump = hex.EncodeToString(sum.Sum(nil))
		return m.Name + dumpSuffix, err
	})
}

// Finish completes a backup.
func (d *Dir) Finish(m Manifest) error {
	if err := d.sync(); err != nil {
		return err
	}
	err := d.put(func(f *os.File) (string, error) {
		out := json.NewEncoder(f)
		out.SetIndent("", "  ")
		return m.Name + manifestSuffix, out.Encode(m)
	})
	return errors.Join(err, d.sync())
}

// ReadDump calls read with the dump of m. It returns ErrDamaged if the dump is not the one
// that was kept.
func (d *Dir) ReadDump(m Manifest, read func(r io.Reader) error) error {
	f, err := os.Open(filepath.Join(d.path, m.Name+dumpSuffix))
	if err != nil {
		return fmt.Errorf("opening the dump: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	all := io.TeeReader(f, sum)
	zip, err := gzip.NewReader(all)
	if err == nil {
		err = read(zip)
	}
	if _, failed := io.Copy(io.Discard, all); failed != nil {
		return fmt.Errorf("reading the dump: %w", failed)
	}
	if hex.EncodeToString(sum.Sum(nil)) != m.Dump {
		return fmt.Errorf("%s has another digest: %w", f.Name(), storage.ErrDamaged)
	}
	return err
}

// base returns the path of a row's file, or what the paths of its sealed forms begin with.
func (d *Dir) base(row store.FileRow) string {
	name := hex.EncodeToString(row.SHA256[:])
	if row.Sealed() {
		name += "." + row.BuildID + "."
	}
	return filepath.Join(filesDir, name[:2], name)
}

// Find returns the paths of a row's file: more than one if it was sealed with several keys.
func (d *Dir) Find(row store.FileRow) (paths []string) {
	path := filepath.Join(d.path, d.base(row))
	candidates := []string{path}
	if row.Sealed() {
		entries, _ := os.ReadDir(filepath.Dir(path)) // there is none if it can't be read
		candidates = nil
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), filepath.Base(path)) {
				candidates = append(candidates, filepath.Join(filepath.Dir(path), e.Name()))
			}
		}
	}
	for _, path := range candidates {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() == storage.StoredSize(row) {
			paths = append(paths, path)
		}
	}
	return paths
}

// has reports whether a row's file is there, if it is sealed with the current key.
func (d *Dir) has(row store.FileRow, current seal.ID) bool {
	return slices.ContainsFunc(d.Find(row), func(path string) bool {
		return !row.Sealed() || keyOf(path) == current
	})
}

func keyOf(path string) (id seal.ID) {
	f, err := os.Open(path)
	if err != nil {
		return id
	}
	defer f.Close()
	head := make([]byte, seal.HeadSize)
	if _, err := io.ReadFull(f, head); err == nil {
		id, _ = seal.KeyOf(head)
	}
	return id
}

// Keep copies the file of a row into the directory unless it is there, and returns how many
// bytes it copied. Errors: NotFound, ErrDamaged, Unavailable.
func (d *Dir) Keep(ctx context.Context, files *storage.Files, current seal.ID, row store.FileRow) (copied int64, err error) {
	if d.has(row, current) {
		return 0, nil
	}
	for _, remote := range []bool{false, true} {
		if remote && !row.Location.Remote() || !remote && !row.Location.Local() {
			continue
		}
		n, failed := d.keep(ctx, files, row, remote)
		if failed == nil {
			return n, nil
		}
		if err == nil || store.CodeOf(err) == store.NotFound {
			err = failed
		}
	}
	return 0, err
}

// keep copies one copy of a file.
func (d *Dir) keep(ctx context.Context, files *storage.Files, row store.FileRow, remote bool) (copied int64, err error) {
	from, err := files.OpenCopy(ctx, row, remote)
	if err != nil {
		return 0, err
	}
	defer from.Close()
	return from.Size, d.put(func(f *os.File) (string, error) {
		sum := sha256.New()
		if _, err := io.Copy(io.MultiWriter(f, sum), from); err != nil {
			return "", fmt.Errorf("copying %s: %w", row.Name, err)
		}
		name := d.base(row)
		if row.Sealed() {
			name += hex.EncodeToString(sum.Sum(nil))
			return name, files.Compare(ctx, &storage.File{Content: f, Size: from.Size}, row)
		}
		if [sha256.Size]byte(sum.Sum(nil)) != row.SHA256 {
			return "", fmt.Errorf("%s has another digest: %w", row.Name, storage.ErrDamaged)
		}
		return name, nil
	})
}
