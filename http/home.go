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
	"strconv"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

//go:embed html/home.html
var homePage string

//go:embed html/home.css
var homeStyle string

// home is the data of html/home.html.
type home struct {
	Style template.CSS
	Stats *api.Stats // nil while the database is away
}

// handleHome handles GET /: what anybody may know, as a page. It needs no
// script, and its policy allows none.
func (s *Server) handleHome() handler {
	page := template.Must(template.New("home").Parse(homePage)) // our own file
	sum := sha256.Sum256([]byte(homeStyle))
	policy := "default-src 'none'; frame-ancestors 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	return func(ctx context.Context, c echo.Context) error {
		data, status := home{Style: template.CSS(homeStyle)}, http.StatusOK //nolint:gosec // our own file
		h := c.Response().Header()
		stats, err := s.currentStats(ctx)
		switch {
		case err == nil:
			data.Stats = &stats.Stats
		case store.CodeOf(err) == store.Unavailable:
			status = http.StatusServiceUnavailable
			h.Set("Retry-After", "10")
		default:
			return err
		}
		var b bytes.Buffer
		if err := page.Execute(&b, data); err != nil {
			return fmt.Errorf("making the home page: %w", err)
		}
		h.Set("Content-Security-Policy", policy)
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Length", strconv.Itoa(b.Len()))
		c.Response().WriteHeader(status)
		if c.Request().Method != http.MethodHead {
			_, _ = c.Response().Write(b.Bytes()) // whoever left doesn't want it
		}
		return nil
	}
}
