package http

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// domain is what a route's requests compete for.
type domain uint8

const (
	fleet    domain = iota // workers' short calls: priority
	submit                 // other small writes
	transfer               // every file, in or out
	query                  // reads
	hook                   // webhooks
	ops                    // operators and probes: these are not levelled
)

func (d domain) String() string {
	return [...]string{"fleet", "submit", "transfer", "query", "hook", "ops"}[d]
}

// limit is how long a request may usually take; operators are shown those that
// take longer.
func (d domain) limit() time.Duration {
	if d == transfer {
		return time.Hour
	}
	return 30 * time.Second
}

// handler answers a request: with what is sent as JSON, see [shared.reply], or
// with an error. ctx ends with the request, or when it is told to end.
type handler func(ctx context.Context, c echo.Context) (any, error)

// route is one row of the table.
type route struct {
	method string // more than one are parted by blanks
	path   string
	access access
	domain domain
	// body is the most bytes of a body, and of a refused one that are read to the
	// end so that the client sees the refusal.
	body int64
	// serve runs handle: levelled or direct. What streams or parks has its own, and
	// holds no place while only its connection waits.
	serve  func(c echo.Context, r *route) error
	handle handler
}

// routes is everything that this server answers.
func (h *handlers) routes() []route {
	const (
		get  = http.MethodGet
		head = http.MethodGet + " " + http.MethodHead
		post = http.MethodPost
		both = http.MethodGet + " " + http.MethodPost
		put  = http.MethodPut
		del  = http.MethodDelete
	)
	// own is for what streams, parks or has a limit of its own.
	own := func(method, path string, a access, d domain, serve func(c echo.Context, r *route) error, handle handler) route {
		return route{method, path, a, d, h.cfg.MaxJSON, serve, handle}
	}
	row := func(method, path string, a access, d domain, handle handler) route {
		return own(method, path, a, d, h.levelled, handle)
	}
	// form is for uploads of at most so many bytes.
	form := func(path string, files int64, handle handler) route {
		return route{post, path, apiKey, transfer, files + formSlack, h.levelled, handle}
	}
	probe := func(method, path string, handle handler) route {
		return own(method, path, public, ops, h.direct, handle)
	}
	admin := func(method, path string, handle handler) route {
		return own(method, path, adminKey, ops, h.direct, handle)
	}

	return []route{
		form("/api/builds", h.cfg.MaxSource+h.cfg.MaxCerts, h.submissions.submitWith(http.StatusCreated)),
		form("/api/builds/submit", h.cfg.MaxSource+h.cfg.MaxCerts, h.submissions.submitWith(http.StatusOK)),
		row(get, "/api/builds", apiKey, query, h.builds.list),
		row(get, "/api/builds/active", apiKey, query, h.builds.active),
		row(get, "/api/builds/statistics", apiKey, query, h.figures.statistics),
		row(get, "/api/builds/:id", apiKey, query, h.builds.show),
		row(get, "/api/builds/:id/status", buildKey, query, h.builds.status),
		own(get, "/api/builds/:id/logs", buildKey, query, h.tails.serve, h.builds.logs),
		row(head, "/api/builds/:id/download", buildKey, transfer, h.builds.download),
		row(head, "/api/builds/:id/download/:type", buildKey, transfer, h.builds.download),
		row(post, "/api/builds/:id/cancel", apiKey, submit, h.builds.cancel),
		row(post, "/api/builds/:id/retry", buildKey, submit, h.submissions.retry),

		row(head, "/api/builds/:id/source", workerKey, transfer, h.holders.source),
		row(head, "/api/builds/:id/certs", workerKey, transfer, h.holders.certs),
		row(get, "/api/builds/:id/certs-secure", holderKey, transfer, h.holders.certsSecure),
		row(post, "/api/builds/:id/telemetry", monitorKey, fleet, h.holders.telemetry),
		row(post, "/api/builds/:id/logs", workerKey, fleet, h.holders.logs),
		row(post, "/api/builds/:id/heartbeat", apiKey, fleet, h.holders.heartbeat),
		row(post, "/api/workers/fail", apiKey, fleet, h.holders.fail),
		row(post, "/api/workers/heartbeat", apiKey, fleet, h.holders.workerHeartbeat),
		form("/api/workers/upload", h.cfg.MaxResult, h.holders.upload),
		form("/api/workers/result", h.cfg.MaxResult, h.holders.upload),

		own(both, "/api/workers/poll", apiKey, fleet, h.polls.serve, nil),
		own(post, "/api/workers/register", apiKey, fleet, h.workers.serveRegister, h.workers.register),
		row(post, "/api/workers/unregister", apiKey, fleet, h.workers.unregister),
		row(post, "/api/workers/:id/unregister", apiKey, fleet, h.workers.unregisterID),
		row(get, "/api/workers", apiKey, query, h.workers.list),
		row(get, "/api/workers/:id", apiKey, query, h.workers.show),
		row(get, "/api/workers/:id/stats", apiKey, query, h.workers.stats),
		row(post, "/api/workers/:id/drain", apiKey, submit, h.workers.drainWith(true)),
		row(post, "/api/workers/:id/resume", apiKey, submit, h.workers.drainWith(false)),
		row(del, "/api/workers/:id", apiKey, submit, h.workers.delete),

		row(post, "/api/diagnostics/report", apiKey, fleet, h.diagnostics.report),
		row(get, "/api/diagnostics/:worker_id", apiKey, query, h.diagnostics.list),
		row(get, "/api/diagnostics/:worker_id/latest", apiKey, query, h.diagnostics.latest),

		row(post, "/api/deployments", apiKey, submit, h.deployments.create),
		row(get, "/api/deployments", apiKey, query, h.deployments.list),
		row(get, "/api/deployments/:id", apiKey, query, h.deployments.show),
		own(get, "/api/deployments/:id/events", apiKey, query, h.deployments.serveEvents, nil),
		row(post, "/api/deployments/:id/cancel", apiKey, submit, h.deployments.cancel),
		row(post, "/api/deployments/:id/pause", apiKey, submit, h.deployments.pause),
		row(post, "/api/deployments/:id/resume", apiKey, submit, h.deployments.resume),
		row(post, "/api/deployments/:id/retry", apiKey, submit, h.deployments.retry),

		row(post, "/api/hubspot/action", public, hook, h.throttle.action), // signed
		row(get, "/api/oauth/authorize", public, submit, h.throttle.authorize),
		row(get, "/api/oauth/callback", public, submit, h.throttle.install),
		row(post, "/api/config", apiKey, submit, h.throttle.putConfig),
		row(get, "/api/config/:portal_id", apiKey, query, h.throttle.listConfigs),
		row(get, "/api/config/:portal_id/:action_id", apiKey, query, h.throttle.showConfig),
		row(del, "/api/config/:portal_id/:action_id", apiKey, submit, h.throttle.deleteConfig),

		own(get, "/api/events", apiKey, query, h.events.serve, nil),
		row(head, "/api/stats", public, query, h.figures.public),
		row(head, "/public/stats", public, query, h.figures.public),

		probe(head, "/", h.figures.home()),
		probe(head, "/health", h.health.show),
		probe(head, "/api/health", h.health.show),
		probe(head, "/livez", h.health.live),
		probe(head, "/readyz", h.health.ready),
		probe(head, "/healthz", h.health.ready),
		probe(head, "/openapi.yaml", serveOpenAPI()),
		probe(get, "/metrics", h.health.metrics()),

		admin(get, "/admin/tree", h.tree.show),
		admin(get, "/admin/tree/*", h.tree.show),
		admin(post, "/admin/tree/*", h.tree.order),
		admin(get, "/admin/heartbeat", h.timeouts.show),
		admin(put, "/admin/heartbeat", h.timeouts.put),
		admin(get, "/admin/heijunka", h.heijunka.show),
		admin(put, "/admin/heijunka/limits", h.heijunka.limits),
		admin(post, "/admin/heijunka/pools/:name/scale", h.heijunka.scale),
		admin(post, "/admin/heijunka/rebalance", h.heijunka.rebalance),
		admin(put, "/admin/heijunka/affinity", h.heijunka.affinity),
		admin(post, "/admin/heijunka/surge", h.heijunka.surge),
		admin(get, "/admin/audit", h.audit.list),
		admin(get, "/admin/throttle/queues", h.queues.list),
		admin(get, "/admin/throttle/queues/:id", h.queues.show),
		admin(post, "/admin/throttle/queues/:id/pause", h.queues.pauseWith(true)),
		admin(post, "/admin/throttle/queues/:id/resume", h.queues.pauseWith(false)),
		admin(post, "/admin/throttle/queues/:id/redrive", h.queues.redrive),
		admin(post, "/admin/throttle/rekey", h.queues.rekey),
	}
}
