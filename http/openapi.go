package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// openAPI describes every route. A test finds those that it does not.
//
//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the document that GET /openapi.yaml shows.
func OpenAPI() []byte { return bytes.Clone(openAPI) }

// handleOpenAPI handles GET /openapi.yaml.
func (s *Server) handleOpenAPI() handler {
	sum := sha256.Sum256(openAPI)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	return func(_ context.Context, c echo.Context) error {
		h := c.Response().Header()
		h.Set("Content-Type", "application/yaml")
		h.Set("Cache-Control", "public, no-cache")
		h.Set("ETag", tag)
		http.ServeContent(c.Response(), c.Request(), "", time.Time{}, bytes.NewReader(openAPI))
		return nil
	}
}
