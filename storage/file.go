package storage

import (
	"errors"
	"io"
	"time"

	"takt/store/seal"
)

// Content is the methods of an open file.
type Content interface {
	io.ReadSeekCloser
	io.ReaderAt
}

// File is a stored file, open for reading.
type File struct {
	// Content is an *os.File for a file on the local disk, so that the kernel can copy a
	// download.
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
	// again reopens an object that was replaced. An open file on the local disk never
	// changes.
	again func() (*SealedFile, error)
}

// Close closes the file.
func (f *SealedFile) Close() error { return f.file.Close() }

// Read continues when an object is resealed meanwhile, because the plain content stays
// the same.
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
		_ = f.file.Close() // it was only read
		f.Reader, f.file = next.Reader, next.file
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return 0, err
		}
	}
	return 0, err
}
