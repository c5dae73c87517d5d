package http

import (
	"context"
	"crypto/subtle"
	"fmt"
	"io"
	"mime/multipart"
	"strings"

	"github.com/dustin/go-humanize"

	"takt/http/edge"
	"takt/storage"
	"takt/store"
)

// uploads reads forms and stores their files.
type uploads struct {
	*edge.Forms
	files Files
}

func newUploads(cfg edge.Config, files Files) *uploads { return &uploads{edge.NewForms(cfg), files} }

// file streams a part to storage. If the part is over the limit, the error names what. A
// part without content and name gives nil, because forms send it for "no file". name is
// that of a file of a new build, which must leave the disk its reserve; "" for any other.
func (s *uploads) file(ctx context.Context, f *edge.Form, p *multipart.Part, what string, limit int64, name string, seal bool) (u *storage.Upload, err error) {
	if !edge.IsFile(p) {
		if n, _ := io.ReadFull(p, make([]byte, 1)); n == 0 {
			return nil, nil
		}
		return nil, edge.Invalid(what + " required")
	}
	want, err := edge.ContentDigest(p.Header.Get("Content-Digest"))
	if err != nil {
		return nil, err
	}
	if name == "" {
		u, err = s.files.Create(ctx, limit, "", edge.Content(p, nil))
	} else {
		u, err = s.files.CreateNew(ctx, name, limit, seal, edge.Content(p, s.files.Room))
	}
	if store.CodeOf(err) == store.TooLarge && !strings.Contains(err.Error(), "Request body") {
		err = store.NewError(store.TooLarge, fmt.Sprintf("%s is larger than %s", what, humanize.IBytes(uint64(limit))))
	}
	if err != nil {
		return nil, err
	}
	switch {
	case want != nil && subtle.ConstantTimeCompare(want, u.SHA256[:]) != 1:
		u.Discard()
		return nil, edge.Invalid("Content-Digest does not match the content of " + what)
	case u.Size == 0 && p.FileName() == "":
		u.Discard()
		return nil, nil
	}
	u.Moved = f.KeepAlive
	return u, nil
}
