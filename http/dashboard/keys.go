package dashboard

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// keysData is the data of the page of keys.
type keysData struct {
	Keys   []store.NamedKey
	Scopes []store.Scope
	// Made is a key that was made just now; it is in no other view.
	Made *api.MadeKey
}

func (d *Dashboard) loadKeys(ctx context.Context, _ *view) (any, error) {
	keys, err := d.deps.Keys.List(ctx)
	return keysData{Keys: keys, Scopes: store.Scopes()}, err
}

// makeKey makes a key and shows it, in the reply to the form only.
func (d *Dashboard) makeKey(ctx context.Context, c echo.Context) (any, error) {
	fields := c.Request().PostForm
	why, err := reasonOf(fields, true)
	if err != nil {
		return nil, err
	}
	in := api.CreateKeyIn{Name: fields.Get("name"), Expires: fields.Get("expires"), Reason: why}
	if v := fields.Get("max_priority"); v != "" {
		if in.MaxPriority, err = store.ParsePriority(v); err != nil {
			return nil, err
		}
	}
	for _, s := range fields["scope"] {
		in.Scopes = append(in.Scopes, store.Scope(s))
	}
	if err := in.Check(); err != nil {
		return nil, err
	}
	made, err := d.server.Acts.CreateKey(ctx, in)
	if err != nil {
		return nil, err
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return d.render(ctx, c, http.StatusOK, "keymade", &screen{Title: "Keys", Section: "/system", Path: "/keys", Page: made})
}
