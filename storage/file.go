package storage

import (
	"os"
	"time"
)

// File is a stored file, open for reading. It is an *os.File so that a
// download can leave the copying to the kernel.
type File struct {
	*os.File
	// Size is in bytes.
	Size    int64
	ModTime time.Time
}

// SealedFile is a sealed file, open for reading its plain content.
type SealedFile struct {
	*unsealer
	file *os.File
	// Size is that of the plain content, in bytes.
	Size    int64
	ModTime time.Time
}

// Close closes the file.
func (f *SealedFile) Close() error { return f.file.Close() }
