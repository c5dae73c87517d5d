package storage

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A sealed file is
//
//	magic (8 bytes) · salt (32 bytes) · chunk · chunk · …
//
// where every chunk is AES-256-GCM of 64 KiB of content (the last one of less,
// perhaps of nothing) under a key of its own file: HKDF-SHA256 of the master
// key and the salt. The nonce is the chunk's number and a byte that says
// whether it is the last, so chunks can't be reordered, repeated or cut off;
// the binding is authenticated with each, so files can't be swapped.
const (
	keySize   = 32
	sealMagic = "taktse\x00\x01"
	saltSize  = 32
	sealHead  = len(sealMagic) + saltSize
	chunkSize = 64 << 10
	tagSize   = 16
)

// SealedSize is how many bytes a sealed file of size bytes has.
func SealedSize(size int64) int64 {
	chunks := max((size+chunkSize-1)/chunkSize, 1) // the last one may be empty
	return int64(sealHead) + size + chunks*tagSize
}

// errSeal is deliberately dull: nothing more is known than that the file is
// not what was written, or the key not the one that it was written with.
var errSeal = errors.New("sealed content is damaged or the key is another")

func sealCipher(master, salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, master, salt, "takt sealed file", keySize)
	if err != nil {
		return nil, fmt.Errorf("deriving key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("making cipher: %w", err)
	}
	return cipher.NewGCM(block)
}

func sealNonce(nonce *[12]byte, chunk int64, last bool) []byte {
	binary.BigEndian.PutUint64(nonce[3:], uint64(chunk))
	nonce[11] = 0
	if last {
		nonce[11] = 1
	}
	return nonce[:]
}

// sealer encrypts what is written to it. Close writes the last chunk.
type sealer struct {
	w       io.Writer
	aead    cipher.AEAD
	binding []byte
	plain   []byte // at most one chunk
	sealed  []byte
	chunk   int64
	nonce   [12]byte
}

func newSealer(w io.Writer, master []byte, binding string) (*sealer, error) {
	head := make([]byte, sealHead)
	copy(head, sealMagic)
	_, _ = rand.Read(head[len(sealMagic):]) // never fails
	aead, err := sealCipher(master, head[len(sealMagic):])
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(head); err != nil {
		return nil, err
	}
	return &sealer{
		w: w, aead: aead, binding: []byte(binding),
		plain:  make([]byte, 0, chunkSize),
		sealed: make([]byte, 0, chunkSize+tagSize),
	}, nil
}

func (s *sealer) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		// A full chunk is written only when more follows: it may be the last.
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

func (s *sealer) Close() error { return s.flush(true) }

func (s *sealer) flush(last bool) error {
	s.sealed = s.aead.Seal(s.sealed[:0], sealNonce(&s.nonce, s.chunk, last), s.plain, s.binding)
	s.plain = s.plain[:0]
	s.chunk++
	_, err := s.w.Write(s.sealed)
	return err
}
