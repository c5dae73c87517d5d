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
	audit := s.audit
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
	table := slices.Concat(
		builds.routes(), submissions.routes(), tails.routes(), workers.routes(), diagnostics.routes(),
		deployments.routes(), throttle.routes(), queues.routes(), events.routes(), figures.routes(), health.routes(), tree.routes(), timeouts.routes(), heijunka.routes(), audit.routes(), drills.routes(), inside.routes(),
	)
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
	}...)
}
