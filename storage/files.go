package storage

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"takt/store"
	"takt/store/batching"
	"takt/store/metrics"
	"takt/store/seal"
	"takt/store/tracing"
)

// Mode says where new files are stored.
type Mode string

// The modes.
const (
	// ModeLocal keeps files on the local disk.
	ModeLocal Mode = "local"
	// ModeS3 keeps them in S3; the local disk holds only uploads.
	ModeS3 Mode = "s3"
	// ModeDual keeps them on both. The janitor copies later what S3 did not take at
	// once.
	ModeDual Mode = "dual"
)

// Valid reports whether m is a known mode.
func (m Mode) Valid() bool { return m == ModeLocal || m == ModeS3 || m == ModeDual }

// Files stores the files of builds where its mode says. It reads a file from the local
// disk first, then from S3. Safe for concurrent use.
type Files struct {
	*Local     // uploads, and the files that stay on this disk
	s3     *S3 // nil without S3
	mode   Mode
	// patience is how long a submitter waits for the second copy.
	patience time.Duration
	// Metrics observe reads and writes. Not nil.
	metrics *metrics.Metrics
}

// NewFiles returns the files in local and s3. s3 may be nil in ModeLocal. Observe them
// with Observe.
func NewFiles(mode Mode, local *Local, s3 *S3) (*Files, error) {
	switch {
	case !mode.Valid():
		return nil, fmt.Errorf("storage %q is not known: local, s3 or dual", mode)
	case s3 == nil && mode != ModeLocal:
		return nil, fmt.Errorf("storage %s needs S3", mode)
	}
	return &Files{Local: local, s3: s3, mode: mode, patience: 15 * time.Second, metrics: metrics.New()}, nil
}

// Observe makes m observe reads and writes. Call it before the first use.
func (f *Files) Observe(m *metrics.Metrics) { f.metrics = m }

// observe records an operation (write or read) on a file.
func (f *Files) observe(ctx context.Context, operation, name string, size int64, took time.Duration) {
	kind := "diagnostics"
	if strings.HasPrefix(name, "builds/") {
		kind, _, _ = strings.Cut(path.Base(name), ".") // source, certs, result
	}
	metrics.Observe(ctx, f.metrics.Stored.WithLabelValues(operation, kind), took)
	f.metrics.StorageBytes.WithLabelValues(operation, kind).Add(float64(size))
}

// Close closes the local disk and the connections to S3.
func (f *Files) Close() error {
	if f.s3 != nil {
		f.s3.Close()
	}
	return f.Local.Close()
}

// Open opens a file that a row names. If the file is in S3, ctx also bounds the
// reading. Errors: NotFound, Unavailable.
func (f *Files) Open(ctx context.Context, file store.File) (*File, error) {
	return f.open(ctx, file, file.Size)
}

// open opens the first copy found of a file that has size bytes in storage.
func (f *Files) open(ctx context.Context, file store.File, size int64) (found *File, err error) {
	begun := time.Now()
	ctx, span := tracing.Start(ctx, trace.SpanKindInternal, "storage open")
	defer func() {
		tracing.End(span, err)
		if err == nil {
			f.observe(ctx, "read", file.Name, size, time.Since(begun))
		}
	}()
	var missing error
	if file.Location != store.InS3 {
		found, err := f.openSized(file.Name, size)
		if err == nil {
			return found, nil
		}
		missing = err
	}
	if file.Object == "" {
		return nil, missing
	}
	if f.s3 == nil {
		return nil, cmp.Or(missing, errNoS3(file.Name))
	}
	o, err := f.openObject(ctx, file, size)
	if store.CodeOf(err) == store.NotFound && missing != nil && store.CodeOf(missing) != store.NotFound {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	if object, ok := o.Content.(*object); ok && size == file.Size { // sealed content is checked as it is opened
		object.sum, object.want = sha256.New(), file.SHA256
	}
	return o, nil
}

// openObject opens the object of a file and checks that it has size bytes.
func (f *Files) openObject(ctx context.Context, file store.File, size int64) (*File, error) {
	if f.s3 == nil {
		return nil, errNoS3(file.Name)
	}
	o, err := f.s3.open(ctx, file.Object)
	if err != nil {
		return nil, err
	}
	if o.size != size {
		return nil, errors.Join(damaged(file.Object, o.size, size), o.Close())
	}
	return &File{Content: o, Size: o.size, ModTime: o.modTime}, nil
}

func errNoS3(name string) error {
	return store.Wrap(store.Unavailable, "The storage of files is not available, try again later",
		fmt.Errorf("%s is in S3, which is not configured", name))
}

// openSized opens a file and checks that it has size bytes.
func (l *Local) openSized(name string, size int64) (*File, error) {
	file, err := l.Open(name)
	if err == nil && file.Size != size {
		return nil, errors.Join(damaged(name, file.Size, size), file.Close())
	}
	return file, err
}

// ErrDamaged is in the chain of errors about files whose content differs from what was
// stored.
var ErrDamaged = errors.New("not what was stored")

func damaged(name string, got, want int64) error {
	return fmt.Errorf("%s has %d bytes, not %d: %w", name, got, want, ErrDamaged)
}

// objectKey returns a new key, never used before, for a file called name.
func objectKey(name string) string {
	ext := path.Ext(name)
	return strings.TrimSuffix(name, ext) + "-" + strings.ToLower(rand.Text()) + ext
}

// Health is the condition of storage.
type Health struct {
	Mode Mode
	// Local is nil if the local disk answers. Free is how many bytes it has left of Size.
	Local      error
	Free, Size int64
	// S3 is the result of the last request to S3; nil without S3.
	S3 *S3State
}

// OK reports whether files can be stored.
func (h Health) OK() bool { return h.Local == nil && (h.Mode != ModeS3 || h.S3.Err == nil) }

// Health checks the local disk and returns the last result of S3.
func (f *Files) Health() Health {
	h := Health{Mode: f.mode}
	h.Free, h.Size, h.Local = f.Space()
	if f.s3 != nil {
		st := f.s3.State()
		h.S3 = &st
	}
	return h
}

const (
	temporaryDir = "tmp"
	// copyBuffer is the memory that one upload uses, in bytes. Larger buffers did not
	// make uploads faster.
	copyBuffer = 512 << 10
	// parallelFrom is the least size of a piece that is hashed and written in parallel,
	// in bytes.
	parallelFrom = 128 << 10
)

// Local keeps files on a local disk.
type Local struct {
	root    *os.Root
	top     *os.File   // root's directory
	keys    *seal.Ring // for certificates
	reserve int64      // bytes of the disk that new builds may not use
	buffers sync.Pool  // of *bufio.Writer, copyBuffer long
	// syncs sync the directories that many uploads change at once. A sync covers every
	// change made before it began, so all who wait share the next one.
	syncs map[string]func() error
}

// OpenLocal opens the storage in dir and makes missing directories. keys seal
// certificates. It does not remove leftovers: see SweepTemporary.
func OpenLocal(dir string, keys *seal.Ring) (*Local, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening storage: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening storage: %w", err)
	}
	for _, d := range []string{temporaryDir, "builds", "diagnostics"} {
		if err := root.MkdirAll(d, 0o700); err != nil {
			return nil, errors.Join(fmt.Errorf("opening storage: %w", err), root.Close())
		}
	}
	top, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening storage: %w", err), root.Close())
	}
	l := &Local{root: root, top: top, keys: keys}
	l.syncs = map[string]func() error{}
	for _, d := range []string{"builds", "diagnostics"} {
		shared := batching.New(batching.Config[struct{}]{Commit: func([]struct{}) error { return l.syncNow(d) }})
		l.syncs[d] = func() error { return shared.Wait(struct{}{}) }
	}
	l.buffers.New = func() any { return bufio.NewWriterSize(nil, copyBuffer) }
	if err := l.syncDir("."); err != nil {
		return nil, errors.Join(fmt.Errorf("opening storage: %w", err), l.Close())
	}
	return l, nil
}

// Close closes the directory. Open uploads and files stay usable.
func (l *Local) Close() error { return errors.Join(l.top.Close(), l.root.Close()) }

// Open opens a committed file. It returns a NotFound error if there is none.
func (l *Local) Open(name string) (*File, error) {
	f, err := l.root.Open(name)
	if err != nil {
		return nil, failure("opening file", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(failure("opening file", err), f.Close())
	}
	return &File{Content: f, Size: info.Size(), ModTime: info.ModTime()}, nil
}

// SweepTemporary removes temporary files that were last written longer than olderThan
// ago, and returns how many. 0 removes all, so it is safe only before the first upload.
func (l *Local) SweepTemporary(olderThan time.Duration) (int, error) {
	entries, err := fs.ReadDir(l.root.FS(), temporaryDir)
	if err != nil {
		return 0, fmt.Errorf("sweeping temporary files: %w", err)
	}
	removed := 0
	var failed error
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) || (err == nil && time.Since(info.ModTime()) < olderThan) {
			continue
		}
		if err == nil {
			err = l.root.Remove(path.Join(temporaryDir, e.Name()))
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("sweeping temporary files: %w", err))
			continue
		}
		removed++
	}
	return removed, failed
}

// maxReserve is the reserve of a large disk, in bytes.
const maxReserve = 1 << 30

// Room returns DiskFull while the disk has no more than its reserve left. New work is
// refused then, so that running builds can finish and the database on the same disk
// keeps working.
func (l *Local) Room() error {
	free, size, err := l.Space()
	if err != nil {
		return err
	}
	if free < cmp.Or(l.reserve, Reserve(size)) {
		return store.NewError(store.DiskFull, "The controller's disk is nearly full")
	}
	return nil
}

// Space returns the free bytes and the size of the file system.
func (l *Local) Space() (free, size int64, err error) { return Space(l.top) }

// Space returns the free bytes and the size of the file system of an open directory.
func Space(dir *os.File) (free, size int64, err error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &s); err != nil {
		return 0, 0, fmt.Errorf("reading free space: %w", err)
	}
	return int64(s.Bavail) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), nil
}

// Reserve returns how many bytes of a file system are left to running builds.
func Reserve(size int64) int64 { return min(maxReserve, size/20) }

// syncDir makes the entries of a directory durable.
func (l *Local) syncDir(name string) error {
	if shared := l.syncs[name]; shared != nil {
		return shared()
	}
	return l.syncNow(name)
}

func (l *Local) syncNow(name string) error {
	d, err := l.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// failure gives an operating system's error its code.
func failure(doing string, err error) error {
	err = fmt.Errorf("%s: %w", doing, err)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return store.Wrap(store.DiskFull, "No space left on the controller", err)
	case errors.Is(err, fs.ErrNotExist):
		return store.Wrap(store.NotFound, "File not found", err)
	}
	return err
}
