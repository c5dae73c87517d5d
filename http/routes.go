package http

import (
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/singleflight"

	"takt/http/api"
	"takt/http/edge"
)

// routes lists every route of this server.
func (s *Server) routes(d Deps, cfg Config) []edge.Route {
	sh, forms := s.Server, newUploads(s.Config, d.Files)
	guests := max(1, cfg.MaxTransfers/4)
	builds := &builds{sh, d.Builds, d.Files, d.Publish, s.Keys, cfg.BuildTokenLife, edge.NewShare("downloads of a build", guests+edge.TurnQueue, max(4, guests/8))}
	submissions := &submissions{sh, cfg, builds, d.Builds, d.Queue, forms}
	holders := &holders{sh, cfg, d.Builds, s.logs, d.Queue, d.Tokens, d.Publish, forms, make(chan struct{}, unpacksAtOnce)}
	priorities := &priorities{builds, d.Queue}
	audit := &audit{sh, s.Keys, d.Audit, d.Background, d.Auditor}
	requeues := &requeues{builds, audit, d.Queue}
	tails := &tails{sh, builds, s.logs, make(chan struct{}, tailReads), make(chan struct{}, max(1, s.Config.MaxStreams/4)), cfg.TailInterval}
	polls := newPolls(sh, cfg, d.Queue, d.Tokens, s.parked)
	workers := newWorkers(sh, audit, cfg, d)
	diagnostics := &diagnostics{sh, d.Workers, d.Files, d.Queue, d.Publish}
	throttle := &throttle{sh, cfg, audit, d.Throttle, d.ThrottleStore, d.OAuth, edge.NewShare("installations", 16, 4)}
	events := &events{sh, s.ring}
	figures := &figures{edge: sh, builds: d.Builds, turn: make(chan struct{}, 1)}
	health := &health{sh, new(singleflight.Group), d.Builds, d.Files, d.Ready, d.VacuumHeldBack, d.Metrics}
	deployments := &deployments{sh, audit, d.Deployments, d.DeploymentStore, s.changed}
	tree := &tree{sh, audit, d.Operator, d.Tree}
	timeouts := &timeouts{sh, audit, d.Heartbeat}
	heijunka := &heijunka{sh, audit, d.Heijunka}
	drills := &drills{sh, audit, d.Drill}
	queues := &queues{sh, audit, d.ThrottleStore, d.Throttle}
	inside := &inside{sh, d.Debug, make(chan struct{}, 1)}
	dash := newDashboard(s, cfg, d, builds, audit, tree)

	const (
		get  = http.MethodGet
		head = http.MethodGet + " " + http.MethodHead
		post = http.MethodPost
		both = http.MethodGet + " " + http.MethodPost
		put  = http.MethodPut
		del  = http.MethodDelete
	)
	// own is for a route that streams, parks or has a limit of its own.
	own := func(method, path string, a api.Access, d api.Class, serve func(c echo.Context, r *edge.Route) error, handle edge.Handler) edge.Route {
		return edge.Route{Method: method, Path: path, Access: a, Class: d, Body: s.Config.MaxJSON, Serve: serve, Handle: handle}
	}
	row := func(method, path string, a api.Access, d api.Class, handle edge.Handler) edge.Route {
		return own(method, path, a, d, s.Levelled, handle)
	}
	// file is for downloads by workers; form is for uploads of at most files bytes.
	file := func(method, path string, a api.Access, handle edge.Handler) edge.Route {
		return own(method, path, a, api.Transfer, s.Transfer, handle)
	}
	form := func(path string, files int64, handle edge.Handler) edge.Route {
		return edge.Route{Method: post, Path: path, Access: api.APIKey, Class: api.Transfer, Body: files + edge.FormSlack, Serve: s.Transfer, Handle: handle}
	}
	// makes is for a route that makes a build.
	makes := func(r edge.Route) edge.Route {
		r.Root = buildTrace
		return r
	}
	admin := func(method, path string, handle edge.Handler) edge.Route {
		return own(method, path, api.AdminKey, api.Ops, s.Direct, handle)
	}
	// screen is a page and its stream of changes; the functions after it are for a
	// browser's other requests. Operators' routes are not levelled, like /admin.
	screen := func(path string, a api.Access, p *page) edge.Route {
		return own(get, path, a, api.Ops, dash.show(p), dash.whole(p))
	}
	visit := func(method, path string, handle edge.Handler) edge.Route {
		return edge.Route{Method: method, Path: path, Access: api.Visitor, Class: api.Ops, Body: maxForm, Serve: dash.open, Handle: handle}
	}
	fetch := func(path string, handle edge.Handler) edge.Route {
		return own(get, path, api.Reader, api.Ops, dash.guarded, handle)
	}
	perform := func(path string, a api.Access, what act) edge.Route {
		return edge.Route{Method: post, Path: path, Access: a, Class: api.Ops, Body: maxForm, Serve: dash.guarded, Handle: dash.perform(what)}
	}

	table := slices.Concat(
		workers.routes(), diagnostics.routes(), deployments.routes(), throttle.routes(), queues.routes(), events.routes(),
		figures.routes(), health.routes(), tree.routes(), timeouts.routes(), heijunka.routes(), audit.routes(), drills.routes(), inside.routes(),
	)
	// handle is the handler of an endpoint, for the forms of pages.
	handle := func(id string) edge.Handler {
		return table[slices.IndexFunc(table, func(r edge.Route) bool { return r.ID == id })].Handle
	}
	return append(table, []edge.Route{
		makes(form("/api/builds", cfg.MaxSource+cfg.MaxCerts, submissions.submitWith(http.StatusCreated))),
		makes(form("/api/builds/submit", cfg.MaxSource+cfg.MaxCerts, submissions.submitWith(http.StatusOK))),
		row(get, "/api/builds", api.APIKey, api.Query, builds.list),
		row(get, "/api/builds/active", api.APIKey, api.Query, builds.active),
		row(get, "/api/builds/:id", api.APIKey, api.Query, builds.show),
		row(http.MethodPatch, "/api/builds/:id", api.APIKey, api.Submit, priorities.patch),
		row(get, "/api/builds/:id/status", api.BuildKey, api.Query, builds.status),
		own(get, "/api/builds/:id/logs", api.BuildKey, api.Query, tails.serve, nil),
		own(head, "/api/builds/:id/download", api.BuildKey, api.Transfer, builds.serveDownload, builds.download),
		own(head, "/api/builds/:id/download/:type", api.BuildKey, api.Transfer, builds.serveDownload, builds.download),
		row(post, "/api/builds/:id/cancel", api.APIKey, api.Submit, edge.ByID(buildNotFound, builds.cancel)),
		makes(row(post, "/api/builds/:id/retry", api.BuildKey, api.Submit, submissions.retry)),
		admin(post, "/api/builds/:id/requeue", requeues.requeue),

		file(head, "/api/builds/:id/source", api.WorkerKey, holders.source),
		file(head, "/api/builds/:id/certs", api.WorkerKey, holders.certs),
		file(get, "/api/builds/:id/certs-secure", api.HolderKey, holders.certsSecure),
		row(post, "/api/builds/:id/telemetry", api.MonitorKey, api.Fleet, holders.telemetry),
		row(post, "/api/builds/:id/logs", api.WorkerKey, api.Fleet, holders.logs),
		row(post, "/api/builds/:id/heartbeat", api.APIKey, api.Fleet, holders.heartbeat),
		row(post, "/api/workers/fail", api.APIKey, api.Fleet, holders.fail),
		row(post, "/api/workers/heartbeat", api.APIKey, api.Fleet, holders.workerHeartbeat),
		form("/api/workers/upload", cfg.MaxResult, holders.upload),
		form("/api/workers/result", cfg.MaxResult, holders.upload),

		own(both, "/api/workers/poll", api.APIKey, api.Fleet, polls.serve, nil),
		visit(get, "/login", dash.loginPage),
		visit(post, "/login", dash.login),
		visit(post, "/logout", dash.logout),
		visit(get, "/assets/:name", dash.asset),
		fetch("/search", dash.search),
		own(head, "/builds/:id/download", api.Reader, api.Transfer, dash.downloadBuild, builds.download),
		own(head, "/builds/:id/download/:type", api.Reader, api.Transfer, dash.downloadBuild, builds.download),
		screen("/fleet", api.Reader, &page{"fleet", "Fleet", dash.loadFleet}),
		screen("/fleet/:id", api.Reader, &page{"worker", "Worker", dash.loadWorker}),
		screen("/queue", api.Reader, &page{"queue", "Queue", dash.loadQueue}),
		screen("/builds", api.Reader, &page{"builds", "Builds", dash.loadBuilds}),
		screen("/builds/:id", api.Reader, &page{"build", "Build", dash.loadBuild}),
		screen("/builds/:id/log", api.Reader, &page{"log", "Log", dash.loadLog}),
		screen("/tree", api.Reader, &page{"tree", "Tree", dash.loadTree}),
		screen("/tree/order", api.Operator, &page{"order", "Order", dash.loadOrder}),
		screen("/heijunka", api.Reader, &page{"heijunka", "Heijunka", dash.loadHeijunka}),
		screen("/throttle", api.Reader, &page{"throttle", "Throttle", dash.loadThrottle}),
		screen("/deployments", api.Reader, &page{"deployments", "Deployments", dash.loadDeployments}),
		screen("/deployments/:id", api.Reader, &page{"deployment", "Deployment", dash.loadDeployment}),
		screen("/audit", api.Operator, &page{"audit", "Audit", dash.loadAudit}),
		perform("/builds/:id/cancel", api.Reader, act{name: "cancel", handle: edge.ByID(buildNotFound, builds.cancel), target: "build"}),
		perform("/builds/:id/retry", api.Reader, act{name: "retry", handle: retried(submissions.retry), target: "build"}),
		perform("/builds/:id/requeue", api.Operator, act{name: "requeue", handle: requeues.requeue, fields: "reason", why: true}),
		perform("/builds/:id/priority", api.Reader, act{name: "priority", handle: priorities.patch, fields: "priority:int", target: "build"}),
		perform("/fleet/:id/drain", api.Reader, act{name: "drain", handle: handle(api.DrainWorker.ID), fields: "reason", target: "worker", why: true}),
		perform("/fleet/:id/resume", api.Reader, act{name: "resume", handle: handle(api.ResumeWorker.ID), fields: "reason", target: "worker", why: true}),
		perform("/fleet/:id/delete", api.Reader, act{name: "delete", handle: handle(api.DeleteWorker.ID), target: "worker", why: true}),
		perform("/tree/*", api.Operator, act{name: "order", handle: dash.treeOrder, fields: "reason", query: "force timeout"}),
		perform("/heijunka/limits", api.Operator, act{name: "limits", handle: handle(api.ChangeHeijunkaLimits.ID), fields: "soft_limit:int hard_limit:int reserved:float reset:bool for reason"}),
		perform("/heijunka/pools/:name", api.Operator, act{name: "scale", handle: handle(api.ScalePool.ID), fields: "by:int workers:int min:int max:int for reason"}),
		perform("/heijunka/surge", api.Operator, act{name: "surge", handle: handle(api.SurgeHeijunka.ID), fields: "action for reason"}),
		perform("/heijunka/rebalance", api.Operator, act{name: "rebalance", handle: handle(api.RebalanceHeijunka.ID), fields: "reason"}),
		perform("/throttle/:id/pause", api.Operator, act{name: "queue-pause", handle: handle(api.PauseQueue.ID), fields: "reason", why: true}),
		perform("/throttle/:id/resume", api.Operator, act{name: "queue-resume", handle: handle(api.ResumeQueue.ID), fields: "reason", why: true}),
		perform("/throttle/:id/redrive", api.Operator, act{name: "queue-redrive", handle: handle(api.RedriveQueue.ID), fields: "reason", why: true}),
		perform("/throttle/:id/rate", api.Reader, act{
			name: "rate", handle: handle(api.SetRate.ID), target: "throttle", why: true,
			fields: "portal_id:int action_id:int max_throughput:int time_period:int time_unit",
		}),
		perform("/deployments/:id/cancel", api.Reader, act{name: "deployment-cancel", handle: handle(api.CancelDeployment.ID), fields: "reason"}),
		perform("/deployments/:id/pause", api.Reader, act{name: "deployment-pause", handle: handle(api.PauseDeployment.ID), fields: "reason"}),
		perform("/deployments/:id/resume", api.Reader, act{name: "deployment-resume", handle: handle(api.ResumeDeployment.ID), fields: "reason"}),
		perform("/deployments/:id/retry", api.Reader, act{name: "deployment-retry", handle: handle(api.RetryDeployment.ID), fields: "repo token reason"}),
	}...)
}
