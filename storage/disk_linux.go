package storage

import "golang.org/x/sys/unix"

// flushStep is how many bytes are written before their write-back to disk starts.
const flushStep = 8 << 20

// flushBehind starts the write-back of what was written and does not wait, so that the
// final fsync has little left to do. It is a hint: fsync reports the errors.
func (in *tempWriter) flushBehind() {
	if in.size-in.flushed < flushStep {
		return
	}
	_ = unix.SyncFileRange(int(in.file.Fd()), in.flushed, in.size-in.flushed, unix.SYNC_FILE_RANGE_WRITE)
	in.flushed = in.size
}
