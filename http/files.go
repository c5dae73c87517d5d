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
func resultName(id string, p store.Platform) string {
	return path.Join("builds", id, "result"+p.ResultExt())
}

// sendFile answers with an unsealed file; missing is the error message if there is none.
func sendFile(ctx context.Context, s *edge.Server, c echo.Context, files Files, f *store.File, missing string, d edge.Download) (any, error) {
	if f == nil {
		return nil, store.NewError(store.NotFound, missing)
	}
	file, err := files.Open(ctx, *f)
	if err != nil {
		return nil, notThere(err, missing)
	}
	defer file.Close()
	d.Content, d.Digest = file.Content, f.SHA256
	return nil, s.SendDownload(c, d)
}

func notThere(err error, missing string) error {
	if store.CodeOf(err) == store.NotFound {
		return store.Wrap(store.NotFound, missing, err)
	}
	return err
}

func buildNotFound() error { return store.NewError(store.NotFound, "Build not found") }

func workerNotFound() error { return store.NewError(store.NotFound, "Worker not found") }
