package seal

import (
	"crypto/cipher"
	"errors"
	"fmt"
	"io"
)

// Size returns how many bytes content of size bytes has in sealed form.
func Size(size int64) int64 {
	chunks := max((size+chunkSize-1)/chunkSize, 1) // the last one may be empty
	return int64(HeadSize) + size + chunks*tagSize
}

// Writer seals what is written to it. Close writes the last chunk.
type Writer struct {
	w       io.Writer
	aead    cipher.AEAD
	binding []byte
	plain   []byte // at most one chunk
	sealed  []byte
	chunk   int64
}

// NewWriter writes the head to w.
func (r *Ring) NewWriter(w io.Writer, kind Kind, binding string) (*Writer, error) {
	head, aead := r.begin(kind)
	if _, err := w.Write(head); err != nil {
		return nil, err
	}
	return &Writer{
		w: w, aead: aead, binding: []byte(binding),
		plain: make([]byte, 0, chunkSize), sealed: make([]byte, 0, step),
	}, nil
}

func (s *Writer) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		// A full chunk is written only when more content follows, because it may be the
		// last.
		if len(s.plain) == chunkSize {
			if err := s.flush(false); err != nil {
				return n, err
			}
		}
		k := min(len(p), chunkSize-len(s.plain))
		s.plain = append(s.plain, p[:k]...)
		p = p[k:]
		n += k
	}
	return n, nil
}

// Close writes the last chunk. It does not close the underlying writer.
func (s *Writer) Close() error { return s.flush(true) }

func (s *Writer) flush(last bool) error {
	s.sealed = s.aead.Seal(s.sealed[:0], nonce(s.chunk, last), s.plain, s.binding)
	s.plain = s.plain[:0]
	s.chunk++
	_, err := s.w.Write(s.sealed)
	return err
}

// Reader reads and seeks in sealed content. Reading a damaged chunk fails before it
// returns any byte of the chunk.
type Reader struct {
	r       io.ReaderAt
	aead    cipher.AEAD
	binding []byte
	chunks  int64
	size    int64 // of the content
	end     int64 // of the sealed content
	at      int64 // next byte of the content
	open    int64 // number of the chunk in plain; -1 for none
	plain   []byte
	sealed  []byte
}

// NewReader opens the first size bytes of from. Errors: ErrUnknownKey, ErrDamaged, and
// the errors of from.
func (r *Ring) NewReader(from io.ReaderAt, size int64, kind Kind, binding string) (*Reader, error) {
	body := size - int64(HeadSize)
	if body < tagSize {
		return nil, ErrDamaged
	}
	head := make([]byte, HeadSize)
	if _, err := from.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("reading sealed content: %w", err)
	}
	aead, err := r.cipher(kind, head)
	if err != nil {
		return nil, err
	}
	chunks := (body + step - 1) / step
	if body-(chunks-1)*step < tagSize {
		return nil, ErrDamaged
	}
	u := &Reader{
		r: from, aead: aead, binding: []byte(binding),
		chunks: chunks, size: body - chunks*tagSize, end: size, open: -1,
		plain:  make([]byte, 0, min(body, chunkSize)),
		sealed: make([]byte, min(body, step)),
	}
	// The last chunk opens only as the last, which proves the length.
	return u, u.load(chunks - 1)
}

// Size returns how many bytes the content has.
func (u *Reader) Size() int64 { return u.size }

func (u *Reader) load(chunk int64) error {
	if u.open == chunk {
		return nil
	}
	off := int64(HeadSize) + chunk*step
	sealed := u.sealed[:min(step, u.end-off)]
	if _, err := u.r.ReadAt(sealed, off); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading sealed content: %w", err)
	}
	u.open = -1
	plain, err := u.aead.Open(u.plain[:0], nonce(chunk, chunk == u.chunks-1), sealed, u.binding)
	if err != nil {
		return ErrDamaged
	}
	u.plain, u.open = plain, chunk
	return nil
}

// Read reads content.
func (u *Reader) Read(p []byte) (int, error) {
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
func (u *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += u.at
	case io.SeekEnd:
		offset += u.size
	}
	if offset < 0 {
		return 0, errors.New("seeking in sealed content: negative position")
	}
	u.at = offset
	return offset, nil
}
