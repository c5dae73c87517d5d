package http

import (
	"context"
	"crypto/subtle"
	"fmt"
	"io"
	"mime/multipart"
	"path"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/labstack/echo/v4"

	"takt/http/edge"
	"takt/storage"
	"takt/store"
)

// Names of a build's files in storage.
func sourceName(id string) string { return path.Join("builds", id, "source.zip") }
func certsName(id string) string  { return path.Join("builds", id, "certs.zip") }

// resultName returns the name of the result of a build for p, whose file was uploaded under
// the name given.
func resultName(id string, p store.Platform, uploaded string) string {
	return path.Join("builds", id, "result"+p.ResultExt(uploaded))
}

// sendFile answers with an unsealed file; missing is the error message if there is none.
func sendFile(ctx context.Context, s *edge.Server, c echo.Context, files Files, f *store.File, missing string, d edge.Download) (any, error) {
	file, err := open(ctx, f, files.Open, missing)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	d.Content, d.Digest = file.Content, f.SHA256
	return nil, s.SendDownload(c, d)
}

// open opens a file with one of [Files]' methods; missing is the error message if there is none.
func open[F any](ctx context.Context, f *store.File, with func(context.Context, store.File) (F, error), missing string) (file F, err error) {
	if f == nil {
		return file, store.NewError(store.NotFound, missing)
	}
	if file, err = with(ctx, *f); store.CodeOf(err) == store.NotFound {
		err = store.Wrap(store.NotFound, missing, err)
	}
	return file, err
}

func buildNotFound() error { return store.NewError(store.NotFound, "Build not found") }

func workerNotFound() error { return store.NewError(store.NotFound, "Worker not found") }

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
