package storage

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// flushStep is how many bytes gather before their writing to disk is begun.
const flushStep = 8 << 20

// flushBehind begins to write back what has gathered, without waiting, so that
// Finish's fsync finds little left to do. It is a hint: errors show up there.
func (u *Upload) flushBehind() {
	if u.size-u.flushed < flushStep {
		return
	}
	_ = unix.SyncFileRange(int(u.file.Fd()), u.flushed, u.size-u.flushed, unix.SYNC_FILE_RANGE_WRITE)
	u.flushed = u.size
}

func freeBytes(d *os.File) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &s); err != nil {
		return 0, fmt.Errorf("reading free space: %w", err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}
