package storage

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
)

// digest is the SHA-256 of all of r.
func digest(ctx context.Context, r io.Reader) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	buf := make([]byte, parallelFrom)
	for {
		if ctx.Err() != nil {
			return sum, context.Cause(ctx)
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			h.Sum(sum[:0])
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}
