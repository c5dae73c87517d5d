package storage

import "golang.org/x/sys/unix"

// flushStep is how many bytes gather before their writing to disk is begun.
const flushStep = 8 << 20

// flushBehind begins to write back what has gathered, without waiting, so that the
// fsync at the end finds little left to do. It is a hint: errors show up there.
func (in *intake) flushBehind() {
	if in.size-in.flushed < flushStep {
		return
	}
	_ = unix.SyncFileRange(int(in.file.Fd()), in.flushed, in.size-in.flushed, unix.SYNC_FILE_RANGE_WRITE)
	in.flushed = in.size
}
