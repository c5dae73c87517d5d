package http

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/sync/singleflight"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// health shows the state of this process.
type health struct {
	edge           *edge.Server
	counting       *singleflight.Group
	builds         Builds
	queue          Queue
	files          Files
	isReady        func() bool
	vacuumHeldBack func() time.Duration
	gatherer       prometheus.Gatherer
	cfg            Config
}

func (h *health) routes() []edge.Route {
	document, metrics := h.edge.Of(api.ShowOpenAPI.Route), h.edge.Of(api.ShowMetrics.Route)
	document.Handle = serveOpenAPI()
	metrics.Serve, metrics.Handle = h.edge.Probe, h.metrics(h.edge.Keys)
	routes := []edge.Route{document, metrics}
	for _, probe := range [...]edge.Route{
		edge.On(h.edge, api.ShowHealth, h.show),
		edge.On(h.edge, api.ShowHealthAlias, h.show),
		edge.On(h.edge, api.IsAlive, h.live),
		edge.On(h.edge, api.IsReady, h.ready),
		edge.On(h.edge, api.IsHealthy, h.ready),
	} {
		probe.Serve = h.edge.Probe
		routes = append(routes, probe)
	}
	return routes
}

// show answers whether builds can be taken. Anybody may ask, so it shows numbers and platforms
// only, and simultaneous requests share one database query.
func (h *health) show(ctx context.Context, _ api.None) (api.Health, error) {
	counted, err, _ := h.counting.Do("", func() (any, error) { return h.builds.Counts(context.WithoutCancel(ctx)) })
	if err != nil {
		return api.Health{}, err
	}
	n, _ := counted.(store.Counts)
	state, reasons := "ok", h.refuses(ctx)
	if len(reasons) > 0 {
		state = "degraded"
	}
	return api.Health{
		Status: "ok", State: state, Reasons: reasons, Version: h.cfg.Version, Commit: h.cfg.Commit, Platforms: h.cfg.Platforms, Queue: api.QueueHealth{Pending: n.Pending, Active: n.Assigned + n.Building}, Storage: h.storage(),
		Database: api.DatabaseHealth{VacuumHeldBackSeconds: int64(h.vacuumHeldBack().Seconds())},
	}, nil
}

// refuses returns the codes of the errors that submits get now. The status stays 200 and "ok": a
// controller that is restarted because of them would only do less.
func (h *health) refuses(ctx context.Context) []store.Code {
	reasons := []store.Code{}
	if h.files != nil { // with the service builds
		if err := h.files.Room(); err != nil {
			reasons = append(reasons, store.CodeOf(err))
		}
		if h.queue.Full(ctx) != nil {
			reasons = append(reasons, store.QueueFull)
		}
	}
	return reasons
}

// storage shows the state of storage. The reason of a fault is only logged.
func (h *health) storage() map[string]any {
	if h.files == nil { // without the service builds
		return map[string]any{}
	}
	state := h.files.Health()
	files := map[string]any{"kind": string(state.Mode), "ok": state.OK()}
	if state.Local != nil {
		h.edge.Log.Warn().Err(state.Local).Msg("storage check failed")
	} else {
		files["free_bytes"] = state.Free
	}
	if state.S3 != nil {
		files["s3"] = map[string]any{"ok": state.S3.Err == nil, "asked_at": api.NewMillis(state.S3.At)}
	}
	return files
}

// live answers that this process responds.
func (h *health) live(context.Context, api.None) (api.Status, error) {
	return api.Status{Status: "ok"}, nil
}

// ready answers whether this process can work.
func (h *health) ready(ctx context.Context, _ api.None) (api.Status, error) {
	switch {
	case edge.Stopping(ctx).Err() != nil:
		return api.Status{}, edge.ErrDraining()
	case !h.isReady():
		return api.Status{}, store.NewError(store.Unavailable, "The database is not ready")
	}
	return api.Status{Status: "ready"}, nil
}

// metricsAge is how long rendered metrics are served.
const metricsAge = time.Second

// metricsForm is a form in which metrics are served.
type metricsForm struct {
	format expfmt.FormatType
	gzip   bool
	// traces includes exemplars, which need the scope read: who knows a build's id could find
	// its times by them.
	traces bool
}

// metrics handles GET /metrics. Anybody may ask for them, so each form is rendered once
// per metricsAge.
func (h *health) metrics(k *edge.Keys) edge.Handler {
	formats := []expfmt.Format{expfmt.NewFormat(expfmt.TypeTextPlain), expfmt.NewFormat(expfmt.TypeOpenMetrics), expfmt.NewFormat(expfmt.TypeProtoDelim)}
	rendered := map[metricsForm]*edge.Cache[[]byte]{}
	for _, format := range formats {
		for i := range 4 {
			rendered[metricsForm{format.FormatType(), i&1 > 0, i&2 > 0}] = edge.NewCache[[]byte](metricsAge)
		}
	}
	return func(ctx context.Context, c echo.Context) (any, error) {
		sent := c.Request().Header
		form := metricsForm{
			expfmt.NegotiateAccept(sent, formats...).FormatType(), strings.Contains(sent.Get("Accept-Encoding"), "gzip"),
			k.Reads(sent),
		}
		if !form.traces && k.Wrong(sent) {
			return nil, h.edge.Wrong.Note(h.edge.Addr(c), edge.ErrWrongKey, time.Now())
		}
		body, err := rendered[form].Get(ctx, func(context.Context) ([]byte, error) { return form.render(h.gatherer) })
		if err != nil {
			return nil, err
		}
		reply := c.Response().Header()
		reply.Set("Vary", "Accept, Accept-Encoding")
		if form.gzip {
			reply.Set("Content-Encoding", "gzip")
		}
		h.edge.ReplyBytes(c, http.StatusOK, []string{string(expfmt.NewFormat(form.format))}, body)
		return nil, nil
	}
}

// render gathers and encodes the metrics.
func (f metricsForm) render(g prometheus.Gatherer) ([]byte, error) {
	families, err := g.Gather()
	if err != nil && len(families) == 0 { // one collector that fails does not hide the others
		return nil, fmt.Errorf("gathering metrics: %w", err)
	}
	var b bytes.Buffer
	var to io.Writer = &b
	zip := gzip.NewWriter(&b)
	if f.gzip {
		to = zip
	}
	e := expfmt.NewEncoder(to, expfmt.NewFormat(f.format))
	for _, family := range families {
		if !f.traces {
			dropExemplars(family)
		}
		if err := e.Encode(family); err != nil {
			return nil, fmt.Errorf("encoding metrics: %w", err)
		}
	}
	if end, ok := e.(expfmt.Closer); ok {
		if err := end.Close(); err != nil {
			return nil, fmt.Errorf("encoding metrics: %w", err)
		}
	}
	if f.gzip {
		if err := zip.Close(); err != nil {
			return nil, fmt.Errorf("compressing metrics: %w", err)
		}
	}
	return b.Bytes(), nil
}

// dropExemplars changes what Gather has made for its caller only.
func dropExemplars(f *dto.MetricFamily) {
	for _, m := range f.GetMetric() {
		if m.Counter != nil {
			m.Counter.Exemplar = nil
		}
		if m.Histogram != nil {
			m.Histogram.Exemplars = nil
		}
		for _, b := range m.GetHistogram().GetBucket() {
			b.Exemplar = nil
		}
	}
}

// openAPI describes every route. A test finds routes that are missing.
//
//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the document that GET /openapi.yaml serves.
func OpenAPI() []byte { return bytes.Clone(openAPI) }

// serveOpenAPI handles GET /openapi.yaml.
func serveOpenAPI() edge.Handler {
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
