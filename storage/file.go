package storage

import (
	"io"
	"time"
)

// Content is what an open file offers.
type Content interface {
	io.ReadSeekCloser
	io.ReaderAt
}

// File is a stored file, open for reading.
type File struct {
	// Content is an *os.File if it is on the local disk, so that a download can
	// leave the copying to the kernel.
	Content
	// Size is in bytes.
	Size    int64
	ModTime time.Time
}
