package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"time"

	"takt/http/api"
	"takt/store"
)

// Target receives a download; *os.File is one.
type Target interface {
	io.ReadWriteSeeker
	Truncate(size int64) error
}

// FetchOptions say how a file is fetched.
type FetchOptions struct {
	// Retry governs repeats. Its limits count from the last byte received, so that a
	// long download over a bad connection continues as long as it makes progress.
	Retry Retry
	// Resume keeps what the target already holds and requests the rest. The digest
	// covers both parts. If the controller sends no digest, everything is fetched
	// again.
	Resume bool
	// Progress may be nil.
	Progress Progress
}

// Fetched is a complete file.
type Fetched struct {
	Size   int64
	Digest Digest
	// Verified is true when the controller gave a digest, and it matched.
	Verified bool
	// Name is the file name that the controller proposes; may be empty. It is not
	// safe to use as a path.
	Name string
}

// ErrDigest means that the content does not match the controller's digest, even when
// fetched again from the beginning.
var ErrDigest = errors.New("content does not match its digest")

// badTries is how often content with a wrong digest is fetched in total.
const badTries = 3

// Download fetches a build's result.
func (c *Client) Download(ctx context.Context, buildID string, auth BuildAuth, dst Target, o FetchOptions) (Fetched, error) {
	return c.fetch(ctx, of(api.DownloadResult, auth.of(buildID)), dst, o)
}

// Source fetches a build's source for the worker that holds it.
func (c *Client) Source(ctx context.Context, b Held, dst Target, o FetchOptions) (Fetched, error) {
	return c.fetch(ctx, of(api.FetchSource, b.holding().Holding), dst, o)
}

// Certs fetches a build's certificates for the worker that holds it.
func (c *Client) Certs(ctx context.Context, b Held, dst Target, o FetchOptions) (Fetched, error) {
	return c.fetch(ctx, of(api.FetchCerts, b.holding().Holding), dst, o)
}

// fetching is a download that may take several requests.
type fetching struct {
	c    *Client
	cl   call
	dst  Target
	opts FetchOptions

	hash hash.Hash // of the first done bytes
	done int64
	etag string
	want *Digest // of the whole file, as the controller says
	size int64
	name string
}

func (c *Client) fetch(ctx context.Context, cl call, dst Target, o FetchOptions) (Fetched, error) {
	f := &fetching{c: c, cl: cl, dst: dst, opts: o, hash: sha256.New(), size: -1}
	if o.Resume {
		if err := f.adopt(); err != nil {
			return Fetched{}, fmt.Errorf("%s: %w", cl, err)
		}
	} else if err := f.restart(); err != nil {
		return Fetched{}, fmt.Errorf("%s: %w", cl, err)
	}
	for try := 1; ; try++ {
		if err := f.complete(ctx); err != nil {
			return Fetched{}, err
		}
		sum := Digest(f.hash.Sum(nil))
		if f.want == nil || *f.want == sum {
			return Fetched{Size: f.done, Digest: sum, Verified: f.want != nil, Name: f.name}, nil
		}
		if try == badTries {
			return Fetched{}, fmt.Errorf("%s: %w", cl, ErrDigest)
		}
		if err := f.restart(); err != nil {
			return Fetched{}, fmt.Errorf("%s: %w", cl, err)
		}
	}
}

// adopt hashes the bytes that the target already holds, and continues after them.
func (f *fetching) adopt() error {
	if _, err := f.dst.Seek(0, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(f.hash, f.dst)
	f.done = n
	return err
}

// restart discards everything received so far.
func (f *fetching) restart() error {
	f.hash.Reset()
	f.done, f.etag, f.want, f.size = 0, "", nil, -1
	if _, err := f.dst.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return f.dst.Truncate(0)
}

// complete makes requests until the whole file is there.
func (f *fetching) complete(ctx context.Context) error {
	for n, since := 0, time.Now(); ; n++ {
		before := f.done
		err := f.request(ctx)
		if err == nil {
			return nil
		}
		if f.done > before {
			n, since = 0, time.Now()
		}
		if err := f.opts.Retry.pause(ctx, err, n, since); err != nil {
			return err
		}
	}
}

// request makes one request and writes its content.
func (f *fetching) request(ctx context.Context) error {
	t, err := f.c.get(ctx, f.cl, from{f.done, f.etag})
	if StatusOf(err) == http.StatusRequestedRangeNotSatisfiable && f.done > 0 {
		// Either the file is complete already or it has changed: fetch the whole.
		if err := f.restart(); err != nil {
			return fmt.Errorf("%s: %w", f.cl, err)
		}
		t, err = f.c.get(ctx, f.cl, from{})
	}
	if err != nil {
		return err
	}
	defer t.body.Close()
	if f.done > 0 && !f.continues(t) {
		if err := f.restart(); err != nil {
			return fmt.Errorf("%s: %w", f.cl, err)
		}
		if t.offset > 0 { // a part of a different file
			return &Error{Op: f.cl.String(), Err: store.NewError(store.Unavailable, "File changed during the download")}
		}
	}
	f.etag, f.want, f.size, f.name = t.etag, t.digest, t.size, t.name
	return f.receive(t)
}

// continues reports whether t is the rest of the file in the target.
func (f *fetching) continues(t *transfer) bool {
	switch {
	case t.offset != f.done:
		return false
	case f.want != nil && t.digest != nil:
		return *f.want == *t.digest
	case t.digest != nil:
		return true // the digest is checked at the end
	default:
		return f.etag != "" && f.etag == t.etag
	}
}

// receive writes t to the target.
func (f *fetching) receive(t *transfer) error {
	if _, err := io.CopyBuffer(f, t.body, make([]byte, 128<<10)); err != nil {
		return err
	}
	return f.whole()
}

// Write writes received bytes to the target.
func (f *fetching) Write(p []byte) (int, error) {
	if n, err := f.dst.Write(p); err != nil {
		return n, fmt.Errorf("%s: %w", f.cl, err)
	}
	_, _ = f.hash.Write(p)
	f.done += int64(len(p))
	if f.opts.Progress != nil {
		f.opts.Progress(f.done, f.size)
	}
	return len(p), nil
}

// whole returns an error if a body ended early although net/http reported none.
func (f *fetching) whole() error {
	if f.size < 0 || f.done == f.size {
		return nil
	}
	return &Error{Op: f.cl.String(), Err: store.NewError(store.Unavailable, fmt.Sprintf("File ended at byte %d of %d", f.done, f.size))}
}
