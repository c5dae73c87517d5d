package storage

import (
	"errors"
	"io"
	"time"

	"takt/store/seal"
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

// SealedFile is a sealed file, open for reading its plain content.
type SealedFile struct {
	*seal.Reader
	file Content
	// Size is that of the plain content, in bytes.
	Size    int64
	ModTime time.Time
	// again opens an object that was replaced. An open file on the local disk never
	// changes.
	again func() (*SealedFile, error)
}

// Close closes the file.
func (f *SealedFile) Close() error { return f.file.Close() }

// Read reads on when an object is sealed anew meanwhile, because its plain content
// stays the same.
func (f *SealedFile) Read(p []byte) (n int, err error) {
	for range reopenings {
		n, err = f.Reader.Read(p)
		if !errors.Is(err, errReplaced) {
			return n, err
		}
		at, _ := f.Seek(0, io.SeekCurrent) // can't fail
		next, err := f.again()
		if err != nil {
			return 0, err
		}
		_ = f.file.Close() // it was read only
		f.Reader, f.file = next.Reader, next.file
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return 0, err
		}
	}
	return 0, err
}
