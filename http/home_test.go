package http_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/store"
)

func TestHome(t *testing.T) {
	t.Parallel()
	t.Run("shows the public figures to anybody, and no cross-origin page reads it", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.submit()
		r := b.send("GET", "/", map[string]string{"Origin": "https://elsewhere.example"}, "")
		require.Equal(t, 200, r.status)
		require.Equal(t, "text/html; charset=utf-8", r.header.Get("Content-Type"))
		require.Empty(t, r.header.Get("Access-Control-Allow-Origin"))
		require.Contains(t, r.body, "<dt>builds waiting</dt><dd>1</dd>")
		require.Contains(t, r.body, "<dt>workers online</dt><dd>0</dd>")

		// The style is allowed by its digest; nothing else is.
		_, style, _ := strings.Cut(r.body, "<style>")
		style, _, _ = strings.Cut(style, "</style>")
		sum := sha256.Sum256([]byte(style))
		require.Equal(t, "default-src 'none'; frame-ancestors 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'",
			r.header.Get("Content-Security-Policy"))
		require.NotContains(t, r.body, "<script")
		require.Empty(t, b.send("HEAD", "/", nil, "").body)
	})
	t.Run("says so when the database is away", func(t *testing.T) {
		t.Parallel()
		b := setupWith(t, func(d *takthttp.Deps) { d.Builds = awayBuilds{d.Builds} })
		r := b.send("GET", "/", nil, "")
		require.Equal(t, 503, r.status)
		require.Equal(t, "10", r.header.Get("Retry-After"))
		require.Contains(t, r.body, "The database is unavailable")
	})
}

// awayBuilds is a store of builds without its database.
type awayBuilds struct{ takthttp.Builds }

func (awayBuilds) Totals(context.Context) (store.Totals, error) {
	return store.Totals{}, store.NewError(store.Unavailable, "The database is unavailable")
}
