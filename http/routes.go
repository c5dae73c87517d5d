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
func (s *Server) routes(d Deps) []route {
	sh, forms := s.shared, newForms(s.cfg, d.Files)
	builds := &builds{sh, d.Builds, d.Files, d.Publish, s.keys}
	submissions := &submissions{sh, builds, d.Builds, d.Queue, forms}
	holders := &holders{sh, d.Builds, s.logs, d.Queue, d.Publish, forms}
	tails := &tails{sh, builds, s.logs, make(chan struct{}, tailReads)}
	polls := newPolls(sh, d.Queue, d.Tokens)
	workers := newWorkers(sh, d)
	diagnostics := &diagnostics{d.Workers, d.Files, d.Queue, d.Publish}
	deployments := &deployments{sh, d.Deployments, d.DeploymentStore, s.changed}
	throttle := &throttle{sh, &audit{sh, d.Audit, d.Background}, d.Throttle, d.ThrottleStore, d.OAuth}
	events := &events{sh, s.ring}
	figures := &figures{shared: sh, builds: d.Builds, turn: make(chan struct{}, 1)}
	health := &health{sh, d.Builds, d.Files, d.Ready, d.VacuumHeldBack, d.Metrics}
	audit := &audit{sh, d.Audit, d.Background}
	tree := &tree{audit, d.Operator, d.Tree}
	timeouts := &timeouts{audit, d.Heartbeat}
	heijunka := &heijunka{audit, d.Heijunka}
	queues := &queues{audit, d.ThrottleStore, d.Throttle, d.OAuth}

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
		return route{method, path, a, d, s.cfg.MaxJSON, serve, handle}
	}
	row := func(method, path string, a access, d domain, handle handler) route {
		return own(method, path, a, d, s.levelled, handle)
	}
	// form is for uploads of at most so many bytes.
	form := func(path string, files int64, handle handler) route {
		return route{post, path, apiKey, transfer, files + formSlack, s.levelled, handle}
	}
	probe := func(method, path string, handle handler) route {
		return own(method, path, public, ops, s.direct, handle)
	}
	admin := func(method, path string, handle handler) route {
		return own(method, path, adminKey, ops, s.direct, handle)
	}

	return []route{
		form("/api/builds", s.cfg.MaxSource+s.cfg.MaxCerts, submissions.submitWith(http.StatusCreated)),
		form("/api/builds/submit", s.cfg.MaxSource+s.cfg.MaxCerts, submissions.submitWith(http.StatusOK)),
		row(get, "/api/builds", apiKey, query, builds.list),
		row(get, "/api/builds/active", apiKey, query, builds.active),
		row(get, "/api/builds/statistics", apiKey, query, figures.statistics),
		row(get, "/api/builds/:id", apiKey, query, builds.show),
		row(get, "/api/builds/:id/status", buildKey, query, builds.status),
		own(get, "/api/builds/:id/logs", buildKey, query, tails.serve, builds.logs),
		row(head, "/api/builds/:id/download", buildKey, transfer, builds.download),
		row(head, "/api/builds/:id/download/:type", buildKey, transfer, builds.download),
		row(post, "/api/builds/:id/cancel", apiKey, submit, byID(buildNotFound, builds.cancel)),
		row(post, "/api/builds/:id/retry", buildKey, submit, submissions.retry),

		row(head, "/api/builds/:id/source", workerKey, transfer, holders.source),
		row(head, "/api/builds/:id/certs", workerKey, transfer, holders.certs),
		row(get, "/api/builds/:id/certs-secure", holderKey, transfer, holders.certsSecure),
		row(post, "/api/builds/:id/telemetry", monitorKey, fleet, holders.telemetry),
		row(post, "/api/builds/:id/logs", workerKey, fleet, holders.logs),
		row(post, "/api/builds/:id/heartbeat", apiKey, fleet, holders.heartbeat),
		row(post, "/api/workers/fail", apiKey, fleet, holders.fail),
		row(post, "/api/workers/heartbeat", apiKey, fleet, holders.workerHeartbeat),
		form("/api/workers/upload", s.cfg.MaxResult, holders.upload),
		form("/api/workers/result", s.cfg.MaxResult, holders.upload),

		own(both, "/api/workers/poll", apiKey, fleet, polls.serve, nil),
		own(post, "/api/workers/register", apiKey, fleet, workers.serveRegister, workers.register),
		row(post, "/api/workers/unregister", apiKey, fleet, workers.unregister),
		row(post, "/api/workers/:id/unregister", apiKey, fleet, byID(workerNotFound, workers.unregisterID)),
		row(get, "/api/workers", apiKey, query, workers.list),
		row(get, "/api/workers/:id", apiKey, query, byID(workerNotFound, workers.show)),
		row(get, "/api/workers/:id/stats", apiKey, query, byID(workerNotFound, workers.stats)),
		row(post, "/api/workers/:id/drain", apiKey, submit, audit.noted("drain worker", workers.drainWith(true))),
		row(post, "/api/workers/:id/resume", apiKey, submit, audit.noted("resume worker", workers.drainWith(false))),
		row(del, "/api/workers/:id", apiKey, submit, audit.noted("delete worker", byID(workerNotFound, workers.delete))),

		row(post, "/api/diagnostics/report", apiKey, fleet, diagnostics.report),
		row(get, "/api/diagnostics/:worker_id", apiKey, query, diagnostics.list),
		row(get, "/api/diagnostics/:worker_id/latest", apiKey, query, diagnostics.latest),

		row(post, "/api/deployments", apiKey, submit, deployments.create),
		row(get, "/api/deployments", apiKey, query, deployments.list),
		row(get, "/api/deployments/:id", apiKey, query, deployments.show),
		own(get, "/api/deployments/:id/events", apiKey, query, deployments.serveEvents, nil),
		row(post, "/api/deployments/:id/cancel", apiKey, submit, deployments.steerWith(Deployments.Cancel)),
		row(post, "/api/deployments/:id/pause", apiKey, submit, deployments.steerWith(Deployments.Pause)),
		row(post, "/api/deployments/:id/resume", apiKey, submit, deployments.steerWith(Deployments.Resume)),
		row(post, "/api/deployments/:id/retry", apiKey, submit, deployments.retry),

		row(post, "/api/hubspot/action", public, hook, throttle.action), // signed
		row(get, "/api/oauth/authorize", public, submit, throttle.authorize),
		row(get, "/api/oauth/callback", public, submit, throttle.install),
		row(post, "/api/config", apiKey, submit, throttle.putConfig),
		row(get, "/api/config/:portal_id", apiKey, query, throttle.listConfigs),
		row(get, "/api/config/:portal_id/:action_id", apiKey, query, throttle.showConfig),
		row(del, "/api/config/:portal_id/:action_id", apiKey, submit, audit.noted("delete rate", throttle.deleteConfig)),

		own(get, "/api/events", apiKey, query, events.serve, nil),
		row(head, "/api/stats", public, query, figures.public),
		row(head, "/public/stats", public, query, figures.public),

		probe(head, "/", figures.home()),
		probe(head, "/health", health.show),
		probe(head, "/api/health", health.show),
		probe(head, "/livez", health.live),
		probe(head, "/readyz", health.ready),
		probe(head, "/healthz", health.ready),
		probe(head, "/openapi.yaml", serveOpenAPI()),
		probe(get, "/metrics", health.metrics()),

		admin(get, "/admin/tree", tree.show),
		admin(get, "/admin/tree/*", tree.show),
		admin(post, "/admin/tree/*", tree.order),
		admin(get, "/admin/heartbeat", timeouts.show),
		admin(put, "/admin/heartbeat", timeouts.put),
		admin(get, "/admin/heijunka", heijunka.show),
		admin(put, "/admin/heijunka/limits", heijunka.limits),
		admin(post, "/admin/heijunka/pools/:name/scale", heijunka.scale),
		admin(post, "/admin/heijunka/rebalance", heijunka.rebalance),
		admin(put, "/admin/heijunka/affinity", heijunka.affinity),
		admin(post, "/admin/heijunka/surge", heijunka.surge),
		admin(get, "/admin/audit", audit.list),
		admin(get, "/admin/throttle/queues", queues.list),
		admin(get, "/admin/throttle/queues/:id", queues.show),
		admin(post, "/admin/throttle/queues/:id/pause", queues.pauseWith(true)),
		admin(post, "/admin/throttle/queues/:id/resume", queues.pauseWith(false)),
		admin(post, "/admin/throttle/queues/:id/redrive", queues.redrive),
		admin(post, "/admin/throttle/rekey", queues.rekey),
	}
}
