package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"mime"
	"net/http"
	"strings"
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

// Inputs fetches parameters and secrets of a build for the worker that holds it. Safe to repeat.
func (c *Client) Inputs(ctx context.Context, b Held) (api.HeldInputs, error) {
	return Call(ctx, c, api.FetchInputs, b.holding().Holding)
}

// fetching is a download that may take several requests.
type fetching struct {
	c    *Client
	cl   call
	dst  Target
	opts FetchOptions

	hash hash.Hash // of the first done bytes
	done int64
	version
}

// version is what a reply says about the whole file.
type version struct {
	etag   string
	digest *Digest // nil if unknown
	size   int64   // -1 if unknown
	name   string  // see Fetched
}

func (c *Client) fetch(ctx context.Context, cl call, dst Target, o FetchOptions) (Fetched, error) {
	f := &fetching{c: c, cl: cl, dst: dst, opts: o, hash: sha256.New(), version: version{size: -1}}
	begin := f.restart
	if o.Resume {
		begin = f.adopt
	}
	for try := 1; ; try++ {
		if err := begin(); err != nil {
			return Fetched{}, fmt.Errorf("%s: %w", cl, err)
		}
		if err := f.complete(ctx); err != nil {
			return Fetched{}, err
		}
		sum := Digest(f.hash.Sum(nil))
		if f.digest == nil || *f.digest == sum {
			return Fetched{Size: f.done, Digest: sum, Verified: f.digest != nil, Name: f.name}, nil
		}
		if try == badTries {
			return Fetched{}, fmt.Errorf("%s: %w", cl, ErrDigest)
		}
		begin = f.restart
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
	f.done, f.version = 0, version{size: -1}
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

// request makes one request and writes its content. A controller that ignores ranges, or
// whose file has changed, answers with the whole file, from offset 0.
func (f *fetching) request(ctx context.Context) error {
	resp, err := f.open(ctx)
	if StatusOf(err) == http.StatusRequestedRangeNotSatisfiable && f.done > 0 {
		// Either the file is complete already or it has changed: fetch the whole.
		if err := f.restart(); err != nil {
			return fmt.Errorf("%s: %w", f.cl, err)
		}
		resp, err = f.open(ctx)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	offset, of, err := f.readHead(resp)
	if err != nil {
		return err
	}
	if f.done > 0 && !f.continues(offset, of) {
		if err := f.restart(); err != nil {
			return fmt.Errorf("%s: %w", f.cl, err)
		}
		if offset > 0 { // a part of a different file
			return &Error{Op: f.cl.String(), Err: store.NewError(store.Unavailable, "File changed during the download")}
		}
	}
	f.version = of
	if _, err := io.CopyBuffer(f, resp.Body, make([]byte, 128<<10)); err != nil {
		return err
	}
	if f.size >= 0 && f.done != f.size { // the body ended early although net/http reported no error
		return &Error{Op: f.cl.String(), Err: store.NewError(store.Unavailable, fmt.Sprintf("File ended at byte %d of %d", f.done, f.size))}
	}
	return nil
}

// open asks for the file from the first byte that is not done.
func (f *fetching) open(ctx context.Context) (*http.Response, error) {
	cl := f.cl
	cl.header = maps.Clone(cl.header)
	cl.header.Set("Accept", "*/*")
	if f.done > 0 {
		cl.header.Set("Range", fmt.Sprintf("bytes=%d-", f.done))
		setIf(cl.header, "If-Range", f.etag)
	}
	return f.c.open(ctx, cl)
}

// readHead reads the headers of a reply. offset is where its body begins in the file.
func (f *fetching) readHead(resp *http.Response) (offset int64, of version, err error) {
	of = version{size: resp.ContentLength, etag: resp.Header.Get("ETag")}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusPartialContent:
		var ok bool
		if offset, of.size, ok = parseContentRange(resp.Header.Get("Content-Range")); !ok || offset != f.done {
			return 0, of, unexpected(f.cl, resp, fmt.Errorf("asked for bytes from %d, got %q", f.done, resp.Header.Get("Content-Range")))
		}
	default:
		return 0, of, unexpected(f.cl, resp, errors.New(resp.Status))
	}
	if d, ok := ParseDigest(resp.Header.Get("Repr-Digest")); ok {
		of.digest = &d
	}
	if _, params, err := mime.ParseMediaType(resp.Header.Get("Content-Disposition")); err == nil {
		of.name = params["filename"]
	}
	return offset, of, nil
}

// parseContentRange reads "bytes 5-9/10" and "bytes 5-9/*".
func parseContentRange(value string) (offset, size int64, ok bool) {
	var end int64
	if n, _ := fmt.Sscanf(value, "bytes %d-%d/%d", &offset, &end, &size); n == 2 && strings.HasSuffix(value, "/*") {
		size = -1
	} else if n != 3 || size <= end {
		return 0, 0, false
	}
	return offset, size, offset >= 0 && end >= offset
}

// continues reports whether a body at offset is the rest of the file in the target.
func (f *fetching) continues(offset int64, of version) bool {
	switch {
	case offset != f.done:
		return false
	case f.digest != nil && of.digest != nil:
		return *f.digest == *of.digest
	case of.digest != nil:
		return true // the digest is checked at the end
	default:
		return f.etag != "" && f.etag == of.etag
	}
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
