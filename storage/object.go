package storage

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/minio/minio-go/v7"

	"takt/store"
)

// errReplaced says that an object was replaced since it was opened.
var errReplaced = errors.New("the object was replaced")

// reopenings is how many broken connections in a row, without a byte in between,
// reading survives.
const reopenings = 3

// object is a stored object, open for reading. It reads nothing ahead: Seek only
// computes the offset, and the next Read requests the rest from there.
type object struct {
	size    int64
	modTime time.Time
	at      int64 // offset of the next Read
	// from requests everything from offset at.
	from func(at int64) (*stream, error)
	body *stream // nil if none is open
	lost int     // broken connections since the last byte

	sum    hash.Hash // of the first summed bytes; nil: not checked
	summed int64
	want   [sha256.Size]byte
	wrong  error // the content differs from the stored one
}

// stream is the body of one answer of S3.
type stream struct {
	io.ReadCloser
	at    int64 // offset of the next byte
	guard *watchdog
}

func (b *stream) close() {
	_ = b.Close() // nothing is lost with it
	b.guard.stop()
}

// open opens the object under key. It returns when the first bytes are on their way, so
// that an error shows before the caller has promised anything. ctx also bounds the
// reading. Error: NotFound.
func (s *S3) open(ctx context.Context, key string) (*object, error) {
	full, err := s.full(key)
	if err != nil {
		return nil, err
	}
	o := &object{size: -1}
	etag := "" // so that all pieces are of one object
	o.from = func(at int64) (*stream, error) {
		var opts minio.GetObjectOptions
		if at > 0 {
			if err := opts.SetRange(at, 0); err != nil {
				return nil, err
			}
		}
		if etag != "" {
			if err := opts.SetMatchETag(etag); err != nil {
				return nil, err
			}
		}
		ctx, guard := watch(ctx, s.cfg.StallTimeout, nil)
		body, info, _, err := s.client.GetObject(ctx, s.cfg.Bucket, full, opts)
		if err = s.failure(ctx, "reading an object", err); err != nil {
			guard.stop()
			return nil, err
		}
		guard.rest()
		if o.size < 0 {
			o.size, o.modTime, etag = info.Size, info.LastModified, info.ETag
		} else if info.Size != o.size-at {
			_ = body.Close()
			guard.stop()
			return nil, fmt.Errorf("reading an object: %d bytes from %d on, of %d", info.Size, at, o.size)
		}
		return &stream{ReadCloser: body, at: at, guard: guard}, nil
	}
	if o.body, err = o.from(0); err != nil {
		return nil, err
	}
	return o, nil
}

// Read reads on after a broken connection.
func (o *object) Read(p []byte) (int, error) {
	for {
		if o.wrong != nil || o.at >= o.size {
			return 0, cmp.Or(o.wrong, io.EOF)
		}
		if o.body == nil || o.body.at != o.at {
			o.drop()
			body, err := o.from(o.at)
			if err != nil {
				return 0, err
			}
			o.body = body
		}
		o.body.guard.wake()
		n, err := o.body.Read(p)
		o.body.guard.rest()
		o.at += int64(n)
		o.body.at += int64(n)
		if n > 0 {
			o.lost = 0
			if o.wrong = o.check(p[:n]); o.wrong != nil {
				return 0, o.wrong
			}
			return n, nil // the error comes again or does not matter
		}
		if err == nil {
			continue
		}
		o.drop()
		if o.lost++; o.lost >= reopenings {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, fmt.Errorf("reading an object: %w", err)
		}
	}
}

// check adds bytes that were read to the digest. It withholds the last ones of a damaged
// object, so that a reader never mistakes a part for the whole. Ranges are not checked.
func (o *object) check(p []byte) error {
	if o.sum == nil || o.at-int64(len(p)) != o.summed {
		return nil
	}
	o.sum.Write(p)
	if o.summed = o.at; o.at < o.size || [sha256.Size]byte(o.sum.Sum(nil)) == o.want {
		return nil
	}
	return store.Wrap(store.Internal, "The stored file is damaged", fmt.Errorf("an object in S3 has another digest: %w", ErrDamaged))
}

// Seek moves within the object.
func (o *object) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += o.at
	case io.SeekEnd:
		offset += o.size
	}
	if offset < 0 {
		return 0, errors.New("seeking in an object: negative position")
	}
	o.at = offset
	return offset, nil
}

// ReadAt may be used by one goroutine at a time, like Read.
func (o *object) ReadAt(p []byte, off int64) (int, error) {
	if _, err := o.Seek(off, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := io.ReadFull(o, p)
	if errors.Is(err, io.ErrUnexpectedEOF) && o.at >= o.size {
		err = io.EOF
	}
	return n, err
}

// Close ends reading.
func (o *object) Close() error {
	o.drop()
	return nil
}

func (o *object) drop() {
	if o.body != nil {
		o.body.close()
		o.body = nil
	}
}
