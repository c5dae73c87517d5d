//go:build !linux

package storage

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// flushBehind does nothing here: only Linux takes the hint.
func (*intake) flushBehind() {}

func freeBytes(d *os.File) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &s); err != nil {
		return 0, fmt.Errorf("reading free space: %w", err)
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
