package http

import (
	"context"
	"path"

	"github.com/labstack/echo/v4"

	"takt/http/edge"
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
