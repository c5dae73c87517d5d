package database

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DataDirLock is the lock by which only one takt uses a data directory. The kernel releases it
// when the process ends, even after kill -9.
type DataDirLock struct{ file *os.File }

// ErrInUse says that another process holds the lock of a data directory.
var ErrInUse = errors.New("used by another takt")

// LockDataDir locks the data directory, which must exist. It never waits. If another process
// holds the lock, the error wraps ErrInUse and names that process. The embedded server and
// other children do not inherit the lock.
func LockDataDir(dir string) (*DataDirLock, error) {
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the data directory's lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer file.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		holder, _ := io.ReadAll(io.LimitReader(file, 32)) // only for the holder's process id in the message
		return nil, fmt.Errorf("the data directory %s is %w (process %s)", dir, ErrInUse, strings.TrimSpace(string(holder)))
	}
	// The process id is for operators. A failed write does no harm.
	if file.Truncate(0) == nil {
		_, _ = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &DataDirLock{file: file}, nil
}

// Release releases the lock. The file stays, because removing it would race with the next
// holder.
func (l *DataDirLock) Release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("releasing the data directory's lock: %w", err)
	}
	return nil
}
