package http

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/singleflight"
)

// domain is a class of requests that compete for the same places.
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

// limit is how long a request should take at most; operators are shown slower ones.
func (d domain) limit() time.Duration {
	if d == transfer {
		return time.Hour
	}
	return 30 * time.Second
}

// handler answers a request with a value that is sent as JSON, see [shared.reply], or
// with an error. ctx ends with the request, or when it is told to end.
type handler func(ctx context.Context, c echo.Context) (any, error)

// route is one row of the table.
type route struct {
	method string // several methods are separated by spaces
	path   string
	access access
	domain domain
	// body is how many bytes a body may have. A refused body is read up to this limit, so
	// that the client receives the refusal.
	body int64
	// serve runs handle, for example levelled or direct. Streams and polls have their own
	// function and hold no place while only their connection waits.
	serve  func(c echo.Context, r *route) error
	handle handler
}

// routes lists every route of this server.
func (s *Server) routes(d Deps) []route {
	sh, forms := s.shared, newForms(s.cfg, d.Files)
	builds := &builds{sh, d.Builds, d.Files, d.Publish, s.keys}
	submissions := &submissions{sh, builds, d.Builds, d.Queue, forms}
	holders := &holders{sh, d.Builds, s.logs, d.Queue, d.Tokens, d.Publish, forms, make(chan struct{}, unpacksAtOnce)}
	priorities := &priorities{builds, d.Queue}
	audit := &audit{sh, s.keys, d.Audit, d.Background, d.Auditor}
	requeues := &requeues{builds, audit, d.Queue}
	tails := &tails{sh, builds, s.logs, make(chan struct{}, tailReads), make(chan struct{}, max(1, s.cfg.MaxStreams/4))}
	polls := newPolls(sh, d.Queue, d.Tokens)
	workers := newWorkers(sh, d)
	diagnostics := &diagnostics{sh, d.Workers, d.Files, d.Queue, d.Publish}
	throttle := &throttle{sh, audit, d.Throttle, d.ThrottleStore, d.OAuth, newShare("installations", 16, 4)}
	events := &events{sh, s.ring}
	figures := &figures{shared: sh, builds: d.Builds, turn: make(chan struct{}, 1)}
	health := &health{sh, new(singleflight.Group), d.Builds, d.Files, d.Ready, d.VacuumHeldBack, d.Metrics}
	deployments := &deployments{audit, d.Deployments, d.DeploymentStore, s.changed}
	tree := &tree{audit, d.Operator, d.Tree}
	timeouts := &timeouts{audit, d.Heartbeat}
	heijunka := &heijunka{audit, d.Heijunka}
	drills := &drills{audit, d.Drill}
	queues := &queues{audit, d.ThrottleStore, d.Throttle, d.OAuth}
	inside := &inside{sh, d.Debug, make(chan struct{}, 1)}
	dash := newDashboard(s, d, builds, audit, tree)

	const (
		get  = http.MethodGet
		head = http.MethodGet + " " + http.MethodHead
		post = http.MethodPost
		both = http.MethodGet + " " + http.MethodPost
		put  = http.MethodPut
		del  = http.MethodDelete
	)
	// own is for a route that streams, parks or has a limit of its own.
	own := func(method, path string, a access, d domain, serve func(c echo.Context, r *route) error, handle handler) route {
		return route{method, path, a, d, s.cfg.MaxJSON, serve, handle}
	}
	row := func(method, path string, a access, d domain, handle handler) route {
		return own(method, path, a, d, s.levelled, handle)
	}
	// open is for a route that needs no key.
	open := func(method, path string, d domain, handle handler) route {
		return own(method, path, public, d, s.open, handle)
	}
	// file is for downloads by workers; form is for uploads of at most files bytes.
	file := func(method, path string, a access, handle handler) route {
		return own(method, path, a, transfer, s.transfer, handle)
	}
	form := func(path string, files int64, handle handler) route {
		return route{post, path, apiKey, transfer, files + formSlack, s.transfer, handle}
	}
	probe := func(path string, handle handler) route {
		return own(head, path, public, ops, s.probe, handle)
	}
	plain := func(method, path string, handle handler) route {
		return own(method, path, public, ops, s.direct, handle)
	}
	admin := func(method, path string, handle handler) route {
		return own(method, path, adminKey, ops, s.direct, handle)
	}
	// screen is a page and its stream of changes; the functions after it are for a
	// browser's other requests. Operators' routes are not levelled, like /admin.
	screen := func(path string, a access, p *page) route { return own(get, path, a, ops, dash.show(p), dash.whole(p)) }
	visit := func(method, path string, handle handler) route {
		return route{method, path, visitor, ops, maxForm, dash.open, handle}
	}
	fetch := func(path string, handle handler) route { return own(get, path, reader, ops, dash.guarded, handle) }
	perform := func(path string, a access, what act) route {
		return route{post, path, a, ops, maxForm, dash.guarded, dash.perform(what)}
	}

	return []route{
		form("/api/builds", s.cfg.MaxSource+s.cfg.MaxCerts, submissions.submitWith(http.StatusCreated)),
		form("/api/builds/submit", s.cfg.MaxSource+s.cfg.MaxCerts, submissions.submitWith(http.StatusOK)),
		row(get, "/api/builds", apiKey, query, builds.list),
		row(get, "/api/builds/active", apiKey, query, builds.active),
		row(get, "/api/builds/statistics", apiKey, query, figures.statistics),
		row(get, "/api/builds/:id", apiKey, query, builds.show),
		row(http.MethodPatch, "/api/builds/:id", apiKey, submit, priorities.patch),
		row(get, "/api/builds/:id/status", buildKey, query, builds.status),
		own(get, "/api/builds/:id/logs", buildKey, query, tails.serve, nil),
		own(head, "/api/builds/:id/download", buildKey, transfer, builds.serveDownload, builds.download),
		own(head, "/api/builds/:id/download/:type", buildKey, transfer, builds.serveDownload, builds.download),
		row(post, "/api/builds/:id/cancel", apiKey, submit, byID(buildNotFound, builds.cancel)),
		row(post, "/api/builds/:id/retry", buildKey, submit, submissions.retry),
		admin(post, "/api/builds/:id/requeue", requeues.requeue),

		file(head, "/api/builds/:id/source", workerKey, holders.source),
		file(head, "/api/builds/:id/certs", workerKey, holders.certs),
		file(get, "/api/builds/:id/certs-secure", holderKey, holders.certsSecure),
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
		row(post, "/api/deployments/:id/cancel", apiKey, submit, deployments.steerWith("cancel", Deployments.Cancel)),
		row(post, "/api/deployments/:id/pause", apiKey, submit, deployments.steerWith("pause", Deployments.Pause)),
		row(post, "/api/deployments/:id/resume", apiKey, submit, deployments.steerWith("resume", Deployments.Resume)),
		row(post, "/api/deployments/:id/retry", apiKey, submit, deployments.retry),

		{post, "/api/hubspot/action", public, hook, min(maxAction, s.cfg.MaxJSON), throttle.action, nil}, // signed
		open(get, "/api/oauth/authorize", submit, throttle.authorize),
		own(get, "/api/oauth/callback", public, submit, throttle.serveInstall, throttle.install),
		row(post, "/api/config", apiKey, submit, throttle.putConfig),
		row(get, "/api/config/:portal_id", apiKey, query, throttle.listConfigs),
		row(get, "/api/config/:portal_id/:action_id", apiKey, query, throttle.showConfig),
		row(del, "/api/config/:portal_id/:action_id", apiKey, submit, audit.noted("delete rate", throttle.deleteConfig)),

		own(get, "/api/events", apiKey, query, events.serve, nil),
		open(head, "/api/stats", query, figures.public),
		open(head, "/public/stats", query, figures.public),

		plain(head, "/", figures.home()),
		visit(get, "/login", dash.loginPage),
		visit(post, "/login", dash.login),
		visit(post, "/logout", dash.logout),
		visit(get, "/assets/:name", dash.asset),
		fetch("/search", dash.search),
		own(head, "/builds/:id/download", reader, transfer, dash.downloadBuild, builds.download),
		own(head, "/builds/:id/download/:type", reader, transfer, dash.downloadBuild, builds.download),
		screen("/fleet", reader, &page{"fleet", "Fleet", dash.loadFleet}),
		screen("/fleet/:id", reader, &page{"worker", "Worker", dash.loadWorker}),
		screen("/queue", reader, &page{"queue", "Queue", dash.loadQueue}),
		screen("/builds", reader, &page{"builds", "Builds", dash.loadBuilds}),
		screen("/builds/:id", reader, &page{"build", "Build", dash.loadBuild}),
		screen("/builds/:id/log", reader, &page{"log", "Log", dash.loadLog}),
		screen("/tree", reader, &page{"tree", "Tree", dash.loadTree}),
		screen("/tree/order", operator, &page{"order", "Order", dash.loadOrder}),
		screen("/heijunka", reader, &page{"heijunka", "Heijunka", dash.loadHeijunka}),
		screen("/throttle", reader, &page{"throttle", "Throttle", dash.loadThrottle}),
		screen("/deployments", reader, &page{"deployments", "Deployments", dash.loadDeployments}),
		screen("/deployments/:id", reader, &page{"deployment", "Deployment", dash.loadDeployment}),
		screen("/audit", operator, &page{"audit", "Audit", dash.loadAudit}),
		perform("/builds/:id/cancel", reader, act{name: "cancel", handle: byID(buildNotFound, builds.cancel), target: "build"}),
		perform("/builds/:id/retry", reader, act{name: "retry", handle: retried(submissions.retry), target: "build"}),
		perform("/builds/:id/requeue", operator, act{name: "requeue", handle: requeues.requeue, fields: "reason", why: true}),
		perform("/builds/:id/priority", reader, act{name: "priority", handle: priorities.patch, fields: "priority:int", target: "build"}),
		perform("/fleet/:id/drain", reader, act{name: "drain", handle: workers.drainWith(true), target: "worker", why: true}),
		perform("/fleet/:id/resume", reader, act{name: "resume", handle: workers.drainWith(false), target: "worker", why: true}),
		perform("/fleet/:id/delete", reader, act{name: "delete", handle: byID(workerNotFound, workers.delete), target: "worker", why: true}),
		perform("/tree/*", operator, act{name: "order", handle: dash.treeOrder, fields: "reason", query: "force timeout"}),
		perform("/heijunka/limits", operator, act{name: "limits", handle: heijunka.limits, fields: "soft_limit:int hard_limit:int reserved:float reset:bool for reason"}),
		perform("/heijunka/pools/:name", operator, act{name: "scale", handle: heijunka.scale, fields: "by:int workers:int min:int max:int for reason"}),
		perform("/heijunka/surge", operator, act{name: "surge", handle: heijunka.surge, fields: "action for reason"}),
		perform("/heijunka/rebalance", operator, act{name: "rebalance", handle: heijunka.rebalance, fields: "reason"}),
		perform("/throttle/:id/pause", operator, act{name: "queue-pause", handle: queues.pauseWith(true), fields: "reason", why: true}),
		perform("/throttle/:id/resume", operator, act{name: "queue-resume", handle: queues.pauseWith(false), fields: "reason", why: true}),
		perform("/throttle/:id/redrive", operator, act{name: "queue-redrive", handle: queues.redrive, fields: "reason", why: true}),
		perform("/throttle/:id/rate", reader, act{
			name: "rate", handle: throttle.setRate, target: "throttle", why: true,
			fields: "portal_id:int action_id:int max_throughput:int time_period:int time_unit",
		}),
		perform("/deployments/:id/cancel", reader, act{name: "deployment-cancel", handle: deployments.steerWith("cancel", Deployments.Cancel), fields: "reason"}),
		perform("/deployments/:id/pause", reader, act{name: "deployment-pause", handle: deployments.steerWith("pause", Deployments.Pause), fields: "reason"}),
		perform("/deployments/:id/resume", reader, act{name: "deployment-resume", handle: deployments.steerWith("resume", Deployments.Resume), fields: "reason"}),
		perform("/deployments/:id/retry", reader, act{name: "deployment-retry", handle: deployments.retry, fields: "repo token reason"}),

		probe("/health", health.show),
		probe("/api/health", health.show),
		probe("/livez", health.live),
		probe("/readyz", health.ready),
		probe("/healthz", health.ready),
		plain(head, "/openapi.yaml", serveOpenAPI()),
		own(get, "/metrics", public, ops, s.probe, health.metrics(s.keys)),

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
		admin(get, "/admin/audit/check", audit.check),
		admin(post, "/admin/audit/check", audit.repair),
		admin(post, "/admin/drill", drills.cause),
		admin(get, "/admin/debug", inside.show),
		admin(get, "/admin/debug/pprof/:name", inside.profile),
		admin(get, "/admin/throttle/queues", queues.list),
		admin(get, "/admin/throttle/queues/:id", queues.show),
		admin(post, "/admin/throttle/queues/:id/pause", queues.pauseWith(true)),
		admin(post, "/admin/throttle/queues/:id/resume", queues.pauseWith(false)),
		admin(post, "/admin/throttle/queues/:id/redrive", queues.redrive),
	}
}
