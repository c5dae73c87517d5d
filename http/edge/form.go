package edge

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// formBuffer is how many bytes are read from a connection at once. The multipart reader
// would read only 4 KiB at a time.
const formBuffer = 256 << 10

// Forms reads multipart forms. Safe for concurrent use.
type Forms struct {
	parts   int       // the most parts of a form
	field   int64     // the most bytes of a text field
	readers sync.Pool // of *bufio.Reader
}

// NewForms returns Forms with the limits of cfg.
func NewForms(cfg Config) *Forms {
	return &Forms{parts: cfg.MaxParts, field: cfg.MaxField, readers: sync.Pool{New: func() any { return bufio.NewReaderSize(nil, formBuffer) }}}
}

// Form is a multipart body that is read part by part, in the client's order.
type Form struct {
	forms *Forms
	body  *Body // nil without one
}

// Read calls take for each part of the request's form, in order. What take does not read of a
// part is skipped. The first error of take ends it.
func (s *Forms) Read(c echo.Context, take func(f *Form, p *multipart.Part) error) error {
	req := c.Request()
	kind, params, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return Invalid("Content must be multipart/form-data")
	}
	f := &Form{forms: s, body: Watched(req)}
	if f.body != nil && req.ContentLength > f.body.max {
		return errTooLarge()
	}
	buffer := s.readers.Get().(*bufio.Reader) // the pool holds nothing else
	buffer.Reset(req.Body)
	defer func() { buffer.Reset(nil); s.readers.Put(buffer) }()
	parts := multipart.NewReader(buffer, params["boundary"])
	for count := 0; ; count++ {
		p, err := parts.NextRawPart()
		switch {
		case err == io.EOF: // not errors.Is, which is also true for a truncated body
			if f.body != nil {
				f.body.Finish()
			}
			return nil
		case err != nil:
			return malformed(err)
		case count == s.parts:
			return Invalid("Too many parts")
		}
		if err := take(f, p); err != nil {
			return err
		}
	}
}

// malformed returns err as InvalidArgument, unless it is a *store.Error already.
func malformed(err error) error {
	if known, ok := errors.AsType[*store.Error](err); ok {
		return known
	}
	return store.Wrap(store.InvalidArgument, "Malformed or incomplete multipart body", err)
}

// Field reads a text field. Errors: TooLarge, InvalidArgument.
func (f *Form) Field(p *multipart.Part) (string, error) {
	v, over, err := f.Text(p)
	if over {
		return "", store.NewError(store.TooLarge, "Form field too large")
	}
	return v, err
}

// Text reads a text field up to the limit, and reports whether it is longer.
func (f *Form) Text(p *multipart.Part) (v string, over bool, err error) {
	b, err := io.ReadAll(io.LimitReader(p, f.forms.field+1))
	if err != nil {
		return "", false, malformed(err)
	}
	over = int64(len(b)) > f.forms.field
	return store.Text(string(b[:min(int64(len(b)), f.forms.field)])), over, nil
}

// Bytes reads a field up to limit bytes, as it was sent, and reports whether it is longer.
func (f *Form) Bytes(p *multipart.Part, limit int64) (b []byte, over bool, err error) {
	if b, err = io.ReadAll(io.LimitReader(p, limit+1)); err != nil {
		return nil, false, malformed(err)
	}
	return b, int64(len(b)) > limit, nil
}

// roomStep is how many bytes are read between two checks of the disk's free space.
const roomStep = 16 << 20

// clientReader returns read errors as InvalidArgument. If room is set, it is called every
// roomStep bytes, and its error ends the reading, because the disk may have become full.
type clientReader struct {
	r    io.Reader
	room func() error
	next int // bytes until the next call of room
}

// Content returns a reader of a file's content. room, which may be nil, returns an error if
// the disk has become full.
func Content(p *multipart.Part, room func() error) io.Reader {
	return &clientReader{r: p, room: room, next: roomStep} // the handler has asked for room
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

// IsFile reports whether a part is a file and not a text field.
func IsFile(p *multipart.Part) bool {
	_, params, _ := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
	_, named := params["filename"]
	return named || p.Header.Get("Content-Type") == "application/octet-stream"
}

// KeepAlive is called while an uploaded file is copied to S3. It moves the connection's
// deadlines, and calls Moved, which records a heartbeat of the build.
func (f *Form) KeepAlive(now time.Time) {
	b := f.body
	if b == nil {
		return
	}
	if now.After(b.renew) {
		b.renew = now.Add(renewal(writeTimeout))
		b.rearm()
	}
	if b.Moved != nil {
		b.Moved(now)
	}
}

// ContentDigest returns the SHA-256 in a Content-Digest header (RFC 9530); nil if it has none.
func ContentDigest(h string) ([]byte, error) {
	for member := range strings.SplitSeq(h, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(member), "=")
		if name != "sha-256" {
			continue
		}
		raw, open := strings.CutPrefix(value, ":")
		raw, closed := strings.CutSuffix(raw, ":")
		sum, err := base64.StdEncoding.DecodeString(raw)
		if !open || !closed || err != nil || len(sum) != 32 {
			return nil, Invalid("Invalid Content-Digest header")
		}
		return sum, nil
	}
	return nil, nil
}
