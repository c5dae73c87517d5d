package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"strings"
)

// transfer is a file that is being received. body must be closed.
type transfer struct {
	body   io.ReadCloser
	offset int64 // where body begins in the file
	size   int64 // the whole file's; -1 if unknown
	etag   string
	digest *Digest // the whole file's; nil if unknown
	name   string  // see Fetched
}

// from says where a download begins.
type from struct {
	offset int64
	etag   string
}

// get opens the file of cl at f.offset. A controller that ignores ranges, or whose
// file has changed, answers with the whole file, from offset 0.
func (c *Client) get(ctx context.Context, cl call, f from) (*transfer, error) {
	cl.header = maps.Clone(cl.header)
	cl.header.Set("Accept", "*/*")
	if f.offset > 0 {
		cl.header.Set("Range", fmt.Sprintf("bytes=%d-", f.offset))
		setIf(cl.header, "If-Range", f.etag)
	}
	resp, err := c.open(ctx, cl)
	if err != nil {
		return nil, err
	}
	t, err := readTransfer(cl, resp, f)
	if err != nil {
		_ = resp.Body.Close() // the body is not used
	}
	return t, err
}

// readTransfer reads the headers of a reply with a file.
func readTransfer(cl call, resp *http.Response, f from) (*transfer, error) {
	t := &transfer{body: resp.Body, size: resp.ContentLength, etag: resp.Header.Get("ETag")}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusPartialContent:
		offset, size, ok := parseContentRange(resp.Header.Get("Content-Range"))
		if !ok || offset != f.offset {
			return nil, unexpected(cl, resp, fmt.Errorf("asked for bytes from %d, got %q", f.offset, resp.Header.Get("Content-Range")))
		}
		t.offset, t.size = offset, size
	default:
		return nil, unexpected(cl, resp, errors.New(resp.Status))
	}
	if d, ok := ParseDigest(resp.Header.Get("Repr-Digest")); ok {
		t.digest = &d
	}
	if _, params, err := mime.ParseMediaType(resp.Header.Get("Content-Disposition")); err == nil {
		t.name = params["filename"]
	}
	return t, nil
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
