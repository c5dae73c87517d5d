package http

import (
	"context"

	"github.com/labstack/echo/v4"

	"takt/http/edge"
	"takt/store"
)

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
