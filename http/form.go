package http

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/storage"
	"takt/store"
)

// formBuffer is how many bytes are read from a connection at once. The multipart reader
// would read only 4 KiB at a time.
const formBuffer = 256 << 10

// forms reads forms and stores their files.
type forms struct {
	cfg     Config
	files   Files
	readers sync.Pool // of *bufio.Reader
}

func newForms(cfg Config, files Files) *forms {
	return &forms{cfg: cfg, files: files, readers: sync.Pool{New: func() any { return bufio.NewReaderSize(nil, formBuffer) }}}
}

// form is a multipart body that is read part by part, in the client's order.
type form struct {
	*forms
	body *body // nil without one
}

// read passes each part of the request's form to take. What take leaves unread of a part
// is skipped.
func (s *forms) read(c echo.Context, take func(f *form, p *multipart.Part) error) error {
	req := c.Request()
	kind, params, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return invalid("Content must be multipart/form-data")
	}
	f := &form{forms: s, body: watched(req)}
	if f.body != nil && req.ContentLength > f.body.max {
		return errTooLarge()
	}
	buffer := s.readers.Get().(*bufio.Reader) //nolint:forcetypeassert // the pool holds nothing else
	buffer.Reset(req.Body)
	defer func() { buffer.Reset(nil); s.readers.Put(buffer) }()
	parts := multipart.NewReader(buffer, params["boundary"])
	for count := 0; ; count++ {
		p, err := parts.NextRawPart()
		switch {
		case err == io.EOF: // not errors.Is, which is also true for a truncated body
			if f.body != nil {
				f.body.finish()
			}
			return nil
		case err != nil:
			return malformed(err)
		case count == f.cfg.MaxParts:
			return invalid("Too many parts")
		}
		if err := take(f, p); err != nil {
			return err
		}
	}
}

// malformed returns err as the client's fault, unless err already has another code.
func malformed(err error) error {
	if known, ok := errors.AsType[*store.Error](err); ok {
		return known
	}
	return store.Wrap(store.InvalidArgument, "Malformed or incomplete multipart body", err)
}

// field reads a text field.
func (f *form) field(p *multipart.Part) (string, error) {
	v, over, err := f.text(p)
	if over {
		return "", store.NewError(store.TooLarge, "Form field too large")
	}
	return v, err
}

// text reads a text field up to the limit and reports whether it is longer.
func (f *form) text(p *multipart.Part) (v string, over bool, err error) {
	b, err := io.ReadAll(io.LimitReader(p, f.cfg.MaxField+1))
	if err != nil {
		return "", false, malformed(err)
	}
	over = int64(len(b)) > f.cfg.MaxField
	return store.Text(string(b[:min(int64(len(b)), f.cfg.MaxField)])), over, nil
}

// roomStep is how many bytes are read between two checks of the disk's free space.
const roomStep = 16 << 20

// clientReader marks read errors as the client's fault. If room is set, it fails when the
// disk gets nearly full.
type clientReader struct {
	r    io.Reader
	room func() error
	next int // bytes until the next call of room
}

func (r *clientReader) Read(p []byte) (int, error) {
	if r.room != nil && r.next <= 0 {
		if err := r.room(); err != nil {
			return 0, err
		}
		r.next = roomStep
	}
	n, err := r.r.Read(p)
	r.next -= n
	if err != nil && !errors.Is(err, io.EOF) {
		err = malformed(err)
	} else if err != nil {
		err = io.EOF
	}
	return n, err
}

// file streams a part to storage. If the part is over the limit, the error names what. A
// part without content and name gives nil, because forms send it for "no file". name is
// that of a file of a new build, which must leave the disk its reserve; "" for any other.
func (f *form) file(ctx context.Context, p *multipart.Part, what string, limit int64, name string, seal bool) (u *storage.Upload, err error) {
	if !isFile(p) {
		if n, _ := io.ReadFull(p, make([]byte, 1)); n == 0 {
			return nil, nil
		}
		return nil, invalid(what + " required")
	}
	want, err := contentDigest(p.Header.Get("Content-Digest"))
	if err != nil {
		return nil, err
	}
	r := &clientReader{r: p, next: roomStep} // the handler has asked for room
	if name == "" {
		u, err = f.files.Create(ctx, limit, "", r)
	} else {
		r.room = f.files.Room
		u, err = f.files.CreateNew(ctx, name, limit, seal, r)
	}
	if store.CodeOf(err) == store.TooLarge && !strings.Contains(err.Error(), "Request body") {
		err = store.NewError(store.TooLarge, fmt.Sprintf("%s is larger than %s", what, size(limit)))
	}
	if err != nil {
		return nil, err
	}
	switch {
	case want != nil && subtle.ConstantTimeCompare(want, u.SHA256[:]) != 1:
		u.Discard()
		return nil, invalid("Content-Digest does not match the content of " + what)
	case u.Size == 0 && p.FileName() == "":
		u.Discard()
		return nil, nil
	}
	u.Moved = f.onward
	return u, nil
}

// isFile distinguishes a file from a text field as other form readers do.
func isFile(p *multipart.Part) bool {
	_, params, _ := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
	_, named := params["filename"]
	return named || p.Header.Get("Content-Type") == "application/octet-stream"
}

// onward keeps the client's connection and the build alive while an uploaded file is
// copied to S3.
func (f *form) onward(now time.Time) {
	b := f.body
	if b == nil {
		return
	}
	if now.After(b.renew) {
		b.renew = now.Add(renewal(writeTimeout))
		b.rearm()
	}
	if b.moved != nil {
		b.moved(now)
	}
}

func size(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// contentDigest reads the SHA-256 from an RFC 9530 header; nil if there is none.
func contentDigest(h string) ([]byte, error) {
	for member := range strings.SplitSeq(h, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(member), "=")
		if name != "sha-256" {
			continue
		}
		raw, open := strings.CutPrefix(value, ":")
		raw, closed := strings.CutSuffix(raw, ":")
		sum, err := base64.StdEncoding.DecodeString(raw)
		if !open || !closed || err != nil || len(sum) != 32 {
			return nil, invalid("Invalid Content-Digest header")
		}
		return sum, nil
	}
	return nil, nil
}
