package client

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// Transfer is a file on its way. Body must be closed.
type Transfer struct {
	Body io.ReadCloser
	// Offset is where Body begins in the file.
	Offset int64
	// Size is the whole file's, -1 if unknown.
	Size int64
	// ETag may be empty.
	ETag string
	// Digest is the whole file's, nil if the controller did not say.
	Digest *Digest
	// Name is the file name that the controller proposes; may be empty. It is
	// not trustworthy as a path.
	Name string
}

// from says where to begin.
type from struct {
	offset int64
	etag   string
}

// get opens the file of cl at f.offset. A controller that does not know ranges,
// or has another file by now, answers with the whole: see Transfer.Offset.
func (c *Client) get(ctx context.Context, cl call, f from) (*Transfer, error) {
	inner, w, free := newWatch(ctx, c.cfg.StallTimeout)
	req, err := c.request(inner, cl)
	if err != nil {
		free()
		return nil, err
	}
	if f.offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", f.offset))
		if f.etag != "" {
			req.Header.Set("If-Range", f.etag)
		}
	}
	resp, err := c.http.Do(req) //nolint:bodyclose // closed by receiving or below
	if err != nil {
		err = noReply(ctx, inner, cl, err)
		free()
		return nil, err
	}
	body := &receiving{ReadCloser: resp.Body, watch: w, free: free}
	t, err := transfer(cl, resp, f)
	if err != nil {
		drain(body)
		_ = body.Close()
		return nil, err
	}
	w.touch()
	t.Body = &broken{ReadCloser: body, cl: cl, outer: ctx, inner: inner}
	return t, nil
}

// transfer reads the headers of a reply with a file.
func transfer(cl call, resp *http.Response, f from) (*Transfer, error) {
	t := &Transfer{Size: resp.ContentLength, ETag: resp.Header.Get("ETag")}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusPartialContent:
		offset, size, ok := parseContentRange(resp.Header.Get("Content-Range"))
		if !ok || offset != f.offset {
			return nil, unexpected(cl, resp, fmt.Errorf("asked for bytes from %d, got %q", f.offset, resp.Header.Get("Content-Range")))
		}
		t.Offset, t.Size = offset, size
	default:
		return nil, refused(cl, resp)
	}
	if d, ok := ParseDigest(resp.Header.Get("Repr-Digest")); ok {
		t.Digest = &d
	}
	if _, params, err := mime.ParseMediaType(resp.Header.Get("Content-Disposition")); err == nil {
		t.Name = params["filename"]
	}
	return t, nil
}

// parseContentRange reads "bytes 5-9/10" and "bytes 5-9/*".
func parseContentRange(value string) (offset, size int64, ok bool) {
	rest, found := strings.CutPrefix(value, "bytes ")
	span, total, sized := strings.Cut(rest, "/")
	first, last, ranged := strings.Cut(span, "-")
	if !found || !sized || !ranged {
		return 0, 0, false
	}
	offset, err1 := strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	if err1 != nil || err2 != nil || offset < 0 || end < offset {
		return 0, 0, false
	}
	if total == "*" {
		return offset, -1, true
	}
	size, err := strconv.ParseInt(total, 10, 64)
	return offset, size, err == nil && size > end
}

// broken gives a body's read errors the form of the package's errors.
type broken struct {
	io.ReadCloser
	cl           call
	outer, inner context.Context //nolint:containedctx // one call's, needed to name what broke it
}

func (b *broken) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader's contract
		err = noReply(b.outer, b.inner, b.cl, err)
	}
	return n, err
}
