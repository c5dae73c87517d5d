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
	audit := &audit{sh, s.Keys, d.Audit, d.Background, d.Auditor}
	builds := newBuilds(sh, audit, cfg, d)
	submissions := &submissions{sh, cfg, builds, d.Builds, d.Queue, forms}
	holders := &holders{sh, cfg, d.Builds, s.logs, d.Queue, d.Tokens, d.Publish, forms, make(chan struct{}, unpacksAtOnce)}
	tails := newTails(sh, builds, s.logs, cfg)
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
		builds.routes(), submissions.routes(), tails.routes(), workers.routes(), diagnostics.routes(),
		deployments.routes(), throttle.routes(), queues.routes(), events.routes(), figures.routes(), health.routes(), tree.routes(), timeouts.routes(), heijunka.routes(), audit.routes(), drills.routes(), inside.routes(),
	)
	// handle is the handler of an endpoint, for the forms of pages.
	handle := func(id string) edge.Handler {
		return table[slices.IndexFunc(table, func(r edge.Route) bool { return r.ID == id })].Handle
	}
	return append(table, []edge.Route{
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
		own(head, "/builds/:id/download", api.Reader, api.Transfer, dash.downloadBuild, handle(api.DownloadResult.ID)),
		own(head, "/builds/:id/download/:type", api.Reader, api.Transfer, dash.downloadBuild, handle(api.DownloadFile.ID)),
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
		perform("/builds/:id/cancel", api.Reader, act{name: "cancel", handle: handle(api.CancelBuild.ID), target: "build"}),
		perform("/builds/:id/retry", api.Reader, act{name: "retry", handle: retried(handle(api.RetryBuild.ID)), target: "build"}),
		perform("/builds/:id/requeue", api.Operator, act{name: "requeue", handle: handle(api.RequeueBuild.ID), fields: "reason", why: true}),
		perform("/builds/:id/priority", api.Reader, act{name: "priority", handle: handle(api.PatchBuild.ID), fields: "priority:int", target: "build"}),
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
