package storage

import (
	"crypto/cipher"
	"errors"
	"fmt"
	"io"
)

// unsealer reads and seeks in the content of a sealed file.
type unsealer struct {
	r       io.ReaderAt
	aead    cipher.AEAD
	binding []byte
	chunks  int64
	size    int64 // of the content
	end     int64 // of the sealed file
	at      int64 // next byte of the content
	open    int64 // number of the chunk in plain; -1 for none
	plain   []byte
	sealed  []byte
	nonce   [12]byte
}

func newUnsealer(r io.ReaderAt, sealedSize int64, master []byte, binding string) (*unsealer, error) {
	body := sealedSize - int64(sealHead)
	if body < tagSize {
		return nil, errSeal
	}
	head := make([]byte, sealHead)
	if _, err := r.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("reading sealed file: %w", err)
	}
	if string(head[:len(sealMagic)]) != sealMagic {
		return nil, errSeal
	}
	aead, err := sealCipher(master, head[len(sealMagic):])
	if err != nil {
		return nil, err
	}
	const step = chunkSize + tagSize
	chunks := (body + step - 1) / step
	if body-(chunks-1)*step < tagSize {
		return nil, errSeal
	}
	u := &unsealer{
		r: r, aead: aead, binding: []byte(binding),
		chunks: chunks, size: body - chunks*tagSize, end: sealedSize, open: -1,
		plain:  make([]byte, 0, chunkSize),
		sealed: make([]byte, step),
	}
	// The last chunk opens only as the last: that proves the length.
	return u, u.load(chunks - 1)
}

func (u *unsealer) load(chunk int64) error {
	if u.open == chunk {
		return nil
	}
	const step = chunkSize + tagSize
	off := int64(sealHead) + chunk*step
	sealed := u.sealed[:min(step, u.end-off)]
	if _, err := u.r.ReadAt(sealed, off); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading sealed file: %w", err)
	}
	u.open = -1
	plain, err := u.aead.Open(u.plain[:0], sealNonce(&u.nonce, chunk, chunk == u.chunks-1), sealed, u.binding)
	if err != nil {
		return errSeal
	}
	u.plain, u.open = plain, chunk
	return nil
}

// Read reads content. A damaged chunk is an error before any byte of it.
func (u *unsealer) Read(p []byte) (int, error) {
	if u.at >= u.size {
		return 0, io.EOF
	}
	if err := u.load(u.at / chunkSize); err != nil {
		return 0, err
	}
	n := copy(p, u.plain[u.at%chunkSize:])
	u.at += int64(n)
	return n, nil
}

// Seek moves within the content.
func (u *unsealer) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += u.at
	case io.SeekEnd:
		offset += u.size
	}
	if offset < 0 {
		return 0, errors.New("seeking in sealed file: negative position")
	}
	u.at = offset
	return offset, nil
}
