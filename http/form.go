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
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/storage"
	"takt/store"
)

// formBuffer is what is read from a connection at once, in bytes. The
// multipart reader itself would ask for 4 KiB at a time.
const formBuffer = 256 << 10

func newFormReader() any { return bufio.NewReaderSize(nil, formBuffer) }

// form is a multipart body that is read part by part, in the client's order.
type form struct {
	server *Server
	parts  *multipart.Reader
	buffer *bufio.Reader
	body   io.ReadCloser
	count  int
}

// openForm begins to read the request's form. Close it on every path.
func (s *Server) openForm(c echo.Context) (*form, error) {
	req := c.Request()
	kind, params, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return nil, invalid("Content must be multipart/form-data")
	}
	f := &form{server: s, body: req.Body}
	if b, ok := req.Body.(*body); ok && req.ContentLength > b.max {
		return nil, store.NewError(store.TooLarge, "Request body too large")
	}
	f.buffer = s.readers.Get().(*bufio.Reader) //nolint:forcetypeassert // the pool holds nothing else
	f.buffer.Reset(f.body)
	req.Body = struct {
		io.Reader
		io.Closer
	}{f.buffer, f.body}
	if f.parts, err = req.MultipartReader(); err != nil {
		f.close()
		return nil, invalid("Content must be multipart/form-data")
	}
	return f, nil
}

func (f *form) close() {
	if f.buffer == nil {
		return
	}
	f.buffer.Reset(nil)
	f.server.readers.Put(f.buffer)
	f.buffer = nil
}

// next returns the next part, nil after the last. What was not read of the
// part before is skipped.
func (f *form) next() (*multipart.Part, error) {
	p, err := f.parts.NextRawPart()
	if err == io.EOF { // not errors.Is: of a truncated body it is true as well
		if b, ok := f.body.(*body); ok {
			b.finish()
		}
		return nil, nil //nolint:nilnil // the end is no part and no error
	}
	if err != nil {
		return nil, malformed(err)
	}
	if f.count++; f.count > f.server.cfg.MaxParts {
		return nil, invalid("Too many parts")
	}
	return p, nil
}

// malformed is the client's fault, unless err says otherwise.
func malformed(err error) error {
	if known, ok := errors.AsType[*store.Error](err); ok {
		return known
	}
	return store.Wrap(store.InvalidArgument, "Malformed or incomplete multipart body", err)
}

// field reads a text field.
func (f *form) field(p *multipart.Part) (string, error) {
	b, err := io.ReadAll(io.LimitReader(p, f.server.cfg.MaxField+1))
	if err != nil {
		return "", malformed(err)
	}
	if int64(len(b)) > f.server.cfg.MaxField {
		return "", store.NewError(store.TooLarge, "Form field too large")
	}
	return text(string(b)), nil
}

// text reads a text field and leaves out what is over the limit: better half
// a worker's complaint than none.
func (f *form) text(p *multipart.Part) (string, error) {
	b, err := io.ReadAll(io.LimitReader(p, f.server.cfg.MaxField))
	if err != nil {
		return "", malformed(err)
	}
	return text(string(b)), nil
}

// clientReader marks what goes wrong with reading as the client's.
type clientReader struct{ r io.Reader }

func (r clientReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = malformed(err)
	} else if err != nil {
		err = io.EOF
	}
	return n, err
}

// arrival is a file that has arrived and waits for its place.
type arrival struct {
	upload *storage.Upload
	file   store.File
	empty  bool // no content and no name: a form's way to say "none"
	// moved is called while the file goes on from here; it may be nil.
	moved func(now time.Time)
}

func (a *arrival) discard() {
	if a != nil {
		a.upload.Discard()
	}
}

// send brings the file to where it belongs. What is left is to record it.
func (a *arrival) send(ctx context.Context, name string) (store.File, error) {
	return a.upload.Send(ctx, name, a.moved)
}

// settle says how the recording ended.
func (a *arrival) settle(err error) {
	if a != nil {
		a.upload.Settle(err)
	}
}

// file streams a part to storage. Over the limit it fails and names what it is.
func (f *form) file(ctx context.Context, p *multipart.Part, what string, limit int64, sealFor string) (*arrival, error) {
	want, err := contentDigest(p.Header.Get("Content-Digest"))
	if err != nil {
		return nil, err
	}
	create := f.server.deps.Files.Create
	if sealFor != "" {
		create = func(ctx context.Context, limit int64) (*storage.Upload, error) {
			return f.server.deps.Files.CreateSealed(ctx, limit, sealFor)
		}
	}
	u, err := create(ctx, limit)
	if err != nil {
		return nil, err
	}
	a := &arrival{upload: u, moved: f.onward()}
	if _, err = u.ReadFrom(clientReader{p}); err == nil {
		a.file.Size, a.file.SHA256, err = u.Finish()
	}
	if err == nil && want != nil && subtle.ConstantTimeCompare(want, a.file.SHA256[:]) != 1 {
		err = invalid("Content-Digest does not match the content of " + what)
	}
	if err != nil {
		u.Discard()
		if store.CodeOf(err) == store.TooLarge && !strings.Contains(err.Error(), "Request body") {
			err = store.NewError(store.TooLarge, fmt.Sprintf("%s is larger than %s", what, size(limit)))
		}
		return nil, err
	}
	a.empty = a.file.Size == 0 && p.FileName() == ""
	return a, nil
}

// onward keeps the client's connection and its build alive while a file that
// came with it goes on to S3.
func (f *form) onward() func(now time.Time) {
	b, ok := f.body.(*body)
	if !ok {
		return nil
	}
	return func(now time.Time) {
		if now.After(b.renew) {
			b.renew = now.Add(renewal(b.write))
			b.rearm()
		}
		if b.moved != nil {
			b.moved(now)
		}
	}
}

func size(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// contentDigest reads the SHA-256 of an RFC 9530 header; nil if it has none.
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

// watched returns the body that watchBody put in its place; nil if there is none.
func watched(r *http.Request) *body {
	b, _ := r.Body.(*body)
	return b
}
