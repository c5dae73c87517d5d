package storage

import (
	"errors"
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

// SealedFile is a sealed file, open for reading its plain content.
type SealedFile struct {
	*unsealer
	file Content
	// Size is that of the plain content, in bytes.
	Size    int64
	ModTime time.Time
}

// Close closes the file.
func (f *SealedFile) Close() error { return f.file.Close() }

// unsealFile makes f, which it takes over, a sealed file.
func unsealFile(f *File, key []byte, binding string) (*SealedFile, error) {
	r, err := newUnsealer(f.Content, f.Size, key, binding)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &SealedFile{unsealer: r, file: f.Content, Size: r.size, ModTime: f.ModTime}, nil
}
