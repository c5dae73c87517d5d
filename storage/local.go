package storage

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"takt/store"
	"takt/store/batching"
	"takt/store/seal"
)

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
