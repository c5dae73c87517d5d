package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/http/forecast"
	"takt/store"
)

//go:embed html/home.html
var homePage string

//go:embed html/home.css
var homeStyle string

// statsAge is how long the public statistics are shown before they are counted again.
const statsAge = 10 * time.Second

// figures counts builds for the public statistics. Anybody may ask for them, so one
// request at a time counts, at most once per statsAge.
type figures struct {
	edge   *edge.Server
	builds Builds
	now    *forecast.Reader
	stats  *edge.Cache[*api.Stats] // the Stats are never changed
}

func (h *figures) routes() []edge.Route {
	home := h.edge.Of(api.ShowHome.Route)
	home.Handle = h.home()
	return []edge.Route{
		home,
		edge.On(h.edge, api.CountBuilds, h.statistics),
		edge.OnRequest(h.edge, api.ShowStats, h.public),
		edge.OnRequest(h.edge, api.ShowPublicStats, h.public),
	}
}

func (h *figures) statistics(ctx context.Context, _ api.None) (api.Statistics, error) {
	t, err := h.builds.Totals(ctx)
	if err != nil {
		return api.Statistics{}, err
	}
	var now *forecast.Reading
	if h.now != nil {
		now, err = h.now.Now(ctx)
	}
	return api.NewStatistics(t, now.Recent()), err
}

func (h *figures) public(ctx context.Context, c echo.Context, _ api.None) (any, error) {
	stats, err := h.current(ctx)
	if err == nil {
		c.Response().Header().Set("Cache-Control", "public, max-age=10")
	}
	return stats, err
}

func (h *figures) current(ctx context.Context) (*api.Stats, error) {
	return h.stats.Get(ctx, func(ctx context.Context) (*api.Stats, error) {
		t, err := h.builds.Totals(ctx)
		stats := api.NewStats(t)
		return &stats, err
	})
}

// home handles GET /: the public figures as a page. It needs no script, and its policy
// allows none.
func (h *figures) home() edge.Handler {
	page := template.Must(template.New("home").Parse(homePage)) // our own file
	sum := sha256.Sum256([]byte(homeStyle))
	policy := "default-src 'none'; frame-ancestors 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	html := []string{"text/html; charset=utf-8"}
	return func(ctx context.Context, c echo.Context) (any, error) {
		var data struct {
			Style template.CSS
			Stats *api.Stats // nil while the database is unavailable
		}
		data.Style = template.CSS(homeStyle) //nolint:gosec // our own file
		status, header := http.StatusOK, c.Response().Header()
		stats, err := h.current(ctx)
		switch {
		case err == nil:
			data.Stats = stats
		case store.IsUnavailable(err):
			status = http.StatusServiceUnavailable
			edge.SetRetryAfter(header, 10*time.Second)
		default:
			return nil, err
		}
		var b bytes.Buffer
		if err := page.Execute(&b, data); err != nil {
			return nil, fmt.Errorf("making the home page: %w", err)
		}
		header.Set("Content-Security-Policy", policy)
		h.edge.ReplyBytes(c, status, html, b.Bytes())
		return nil, nil
	}
}
