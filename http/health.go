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
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/singleflight"

	"takt/http/api"
	"takt/store"
)

// health shows the state of this process.
type health struct {
	*shared
	counting       *singleflight.Group
	builds         Builds
	files          Files
	isReady        func() bool
	vacuumHeldBack func() time.Duration
	gatherer       prometheus.Gatherer
}

// show handles GET /health and GET /api/health. Anybody may ask, so it shows numbers
// only, and simultaneous requests share one database query.
func (h *health) show(ctx context.Context, _ echo.Context) (any, error) {
	counted, err, _ := h.counting.Do("", func() (any, error) { return h.builds.Counts(context.WithoutCancel(ctx)) })
	if err != nil {
		return nil, err
	}
	n, _ := counted.(store.Counts)
	return api.Health{
		Status: "ok", Queue: api.QueueHealth{Pending: n.Pending, Active: n.Assigned + n.Building}, Storage: h.storage(),
		Database: api.DatabaseHealth{VacuumHeldBackSeconds: int64(h.vacuumHeldBack().Seconds())},
	}, nil
}

// storage shows the state of storage. The reason of a fault is only logged.
func (h *health) storage() map[string]any {
	state := h.files.Health()
	files := map[string]any{"kind": string(state.Mode), "ok": state.OK()}
	if state.Local != nil {
		h.log.Warn().Err(state.Local).Msg("storage is not well")
	} else {
		files["free_bytes"] = state.Free
	}
	if state.S3 != nil {
		files["s3"] = map[string]any{"ok": state.S3.Err == nil, "asked_at": api.NewMillis(state.S3.At)}
	}
	return files
}

// live handles GET /livez: this process responds.
func (h *health) live(context.Context, echo.Context) (any, error) {
	return api.Status{Status: "ok"}, nil
}

// ready handles GET /readyz and GET /healthz: this process can work.
func (h *health) ready(ctx context.Context, _ echo.Context) (any, error) {
	switch {
	case stopping(ctx).Err() != nil:
		return nil, errDraining()
	case !h.isReady():
		return nil, store.NewError(store.Unavailable, "The database is not ready")
	}
	return api.Status{Status: "ready"}, nil
}

func (h *health) metrics() handler {
	all := promhttp.HandlerFor(h.gatherer, promhttp.HandlerOpts{
		ErrorHandling:     promhttp.ContinueOnError,
		EnableOpenMetrics: true, // for exemplars
	})
	return func(_ context.Context, c echo.Context) (any, error) {
		all.ServeHTTP(c.Response(), c.Request())
		return nil, nil
	}
}

// openAPI describes every route. A test finds routes that are missing.
//
//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the document that GET /openapi.yaml serves.
func OpenAPI() []byte { return bytes.Clone(openAPI) }

// serveOpenAPI handles GET /openapi.yaml.
func serveOpenAPI() handler {
	sum := sha256.Sum256(openAPI)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	return func(_ context.Context, c echo.Context) (any, error) {
		h := c.Response().Header()
		h.Set("Content-Type", "application/yaml")
		h.Set("Cache-Control", "public, no-cache")
		h.Set("ETag", tag)
		http.ServeContent(c.Response(), c.Request(), "", time.Time{}, bytes.NewReader(openAPI))
		return nil, nil
	}
}
