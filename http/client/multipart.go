package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
)

// part is one field of a form. A part without content has a value.
type part struct {
	name    string
	value   string
	file    string // file name as sent
	mime    string
	content *Content
}

// file is a part with content.
func file(name, filename, mime string, content Content) part {
	return part{name: name, file: filename, mime: mime, content: &content}
}

// field is a part with a value.
func field(name, value string) part { return part{name: name, value: value} }

// layOut returns the pieces of a multipart/form-data body of parts, in the given
// order, and its boundary. It never holds contents in memory.
func layOut(parts []part) (pieces []Content, boundary string, err error) {
	var frame bytes.Buffer
	mp := multipart.NewWriter(&frame)
	cut := func() {
		pieces = append(pieces, plain(bytes.Clone(frame.Bytes())))
		frame.Reset()
	}
	for _, p := range parts {
		if p.content == nil {
			if err := mp.WriteField(p.name, p.value); err != nil {
				return nil, "", err
			}
			continue
		}
		header := textproto.MIMEHeader{}
		header.Set("Content-Disposition", multipart.FileContentDisposition(p.name, p.file))
		header.Set("Content-Type", p.mime)
		if p.content.Digest != nil {
			header.Set("Content-Digest", FormatDigest(*p.content.Digest))
		}
		if _, err := mp.CreatePart(header); err != nil {
			return nil, "", err
		}
		cut()
		pieces = append(pieces, *p.content)
	}
	err = mp.Close()
	cut()
	return pieces, mp.Boundary(), err
}

// total returns the size of all pieces; -1 if the size of one is unknown.
func total(pieces []Content) (size int64) {
	for _, p := range pieces {
		if p.Size < 0 {
			return -1
		}
		size += p.Size
	}
	return size
}

// expectFrom is the size in bytes from which an upload asks for permission before it
// sends its body (Expect: 100-continue).
const expectFrom = 256 << 10

// upload sends a form and returns the reply.
func upload[T any](ctx context.Context, c *Client, cl call, parts []part, progress Progress) (out T, err error) {
	pieces, boundary, err := layOut(parts)
	if err != nil {
		return out, fmt.Errorf("%s: %w", cl, err)
	}
	inner, w, free := newWatch(ctx, c.cfg.StallTimeout)
	defer free()
	size := total(pieces)
	cl.boundary, cl.form = boundary, Content{Size: size, Open: func() (io.ReadCloser, error) {
		return &sending{
			ReadCloser: &sequence{rest: pieces}, watch: w, reply: c.cfg.ReplyTimeout, total: size, progress: progress,
		}, nil
	}}
	if size < 0 || size >= expectFrom {
		cl.header.Set("Expect", "100-continue")
	}
	resp, err := c.send(ctx, inner, cl)
	if err != nil {
		return out, err
	}
	w.allow(c.cfg.StallTimeout)
	err = decode(ctx, inner, cl, resp, &out)
	return out, err
}
