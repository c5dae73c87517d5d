package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"strings"
)

// part is one field of a form. A part without content has value.
type part struct {
	name    string
	value   string
	file    string // file name as sent
	mime    string
	content *Content
}

// form is a multipart/form-data body that is never held in memory.
type form struct {
	boundary string
	pieces   []Content
	size     int64 // -1 if unknown
}

// newForm lays parts out in the given order.
func newForm(parts []part) (*form, error) {
	var frame bytes.Buffer
	mp := multipart.NewWriter(&frame)
	f := &form{boundary: mp.Boundary()}
	for _, p := range parts {
		header := textproto.MIMEHeader{}
		disposition := fmt.Sprintf(`form-data; name="%s"`, quote(p.name))
		if p.content != nil {
			disposition += fmt.Sprintf(`; filename="%s"`, quote(p.file))
			header.Set("Content-Type", p.mime)
			if p.content.Digest != nil {
				header.Set("Content-Digest", FormatDigest(*p.content.Digest))
			}
		}
		header.Set("Content-Disposition", disposition)
		w, err := mp.CreatePart(header)
		if err != nil {
			return nil, err
		}
		if p.content == nil {
			if _, err := io.WriteString(w, p.value); err != nil {
				return nil, err
			}
			continue
		}
		f.add(Bytes(bytes.Clone(frame.Bytes())))
		frame.Reset()
		f.add(*p.content)
	}
	if err := mp.Close(); err != nil {
		return nil, err
	}
	f.add(Bytes(bytes.Clone(frame.Bytes())))
	return f, nil
}

func (f *form) add(c Content) {
	f.pieces = append(f.pieces, c)
	if f.size < 0 || c.Size < 0 {
		f.size = -1
		return
	}
	f.size += c.Size
}

func (f *form) open() io.ReadCloser { return &sequence{rest: f.pieces} }

func quote(s string) string {
	return strings.NewReplacer("\\", "\\\\", `"`, "%22", "\r", "%0D", "\n", "%0A").Replace(s)
}

// expectFrom is the size in bytes from which an upload first asks whether it is
// welcome (Expect: 100-continue).
const expectFrom = 256 << 10

// upload sends a form and reads the reply into out.
func (c *Client) upload(ctx context.Context, cl call, parts []part, progress Progress, out any) error {
	f, err := newForm(parts)
	if err != nil {
		return fmt.Errorf("%s: %w", cl, err)
	}
	inner, w, free := newWatch(ctx, c.cfg.StallTimeout)
	defer free()
	req, err := c.request(inner, cl)
	if err != nil {
		return err
	}
	body := func() (io.ReadCloser, error) {
		return &sending{
			ReadCloser: f.open(), watch: w, reply: c.cfg.ReplyTimeout,
			total: f.size, progress: progress,
		}, nil
	}
	req.Body, _ = body()
	req.GetBody = body
	req.ContentLength = f.size
	req.Header.Set("Content-Type", "multipart/form-data; boundary="+f.boundary)
	req.Header.Set("Accept", "application/json")
	if f.size < 0 || f.size >= expectFrom {
		req.Header.Set("Expect", "100-continue")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return noReply(ctx, inner, cl, err)
	}
	defer resp.Body.Close()
	defer drain(resp.Body)
	w.allow(c.cfg.StallTimeout)
	return c.decode(ctx, inner, cl, resp, out)
}

// file is a part with content.
func file(name, filename, mime string, content Content) part {
	return part{name: name, file: filename, mime: mime, content: &content}
}

// field is a part with a value.
func field(name, value string) part { return part{name: name, value: value} }
