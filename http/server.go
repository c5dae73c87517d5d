package http

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
	"takt/store/metrics"
)

// Server answers HTTP. Make it with New.
type Server struct {
	*edge.Server
	// Acts are what pages can do, besides [Server.Order].
	Acts    Acts
	ring    *edge.Ring
	logs    *followers
	changed *followers       // of deployments
	parked  prometheus.Gauge // polls
	audit   *audit
	tree    *tree
}

// New returns a Server. It starts nothing. cfg's zero values mean defaults.
func New(deps Deps, cfg Config) (*Server, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("http settings: %w", err)
	}
	if deps.Observed == nil {
		deps.Observed = metrics.New()
	}
	s := &Server{ring: edge.NewRing(ringSize), logs: newFollowers(), changed: newFollowers()}
	s.Server = edge.New(edge.Deps{
		Requests: deps.Requests, Serving: deps.Serving, TLS: deps.TLS, Observed: deps.Observed, Ring: deps.Ring, Logger: deps.Logger,
		Bodies: map[api.BodyLimit]int64{
			api.SourceBody: cfg.MaxSource + cfg.MaxCerts + edge.FormSlack, api.ResultBody: cfg.MaxResult + edge.FormSlack,
			api.WebhookBody: min(maxAction, cfg.MaxJSON),
		},
		Misused: (&misuse{deps: deps}).report,
		Report: func(e store.AuditEntry) {
			deps.Background(func(ctx context.Context) {
				ctx, cancel := context.WithTimeoutCause(ctx, auditPatience, errSlowAudit)
				defer cancel()
				_, _ = deps.Audit.Append(ctx, e) // the log has it too
			})
		},
	}, cfg.Config)
	s.audit = &audit{s.Server, s.Keys, deps.Audit, deps.Background, deps.Auditor, deps.Repair}
	s.tree = newTree(s.Server, s.audit, deps.Operator, deps.Tree)
	if cfg.runs(api.ServiceBuilds) {
		s.parked = s.Metrics().Gauge("takt_http_polls_parked").WithLabelValues()
	} else {
		deps.Builds = noBuilds{}
	}
	s.Handle(slices.DeleteFunc(s.routes(deps, cfg), func(r edge.Route) bool { return !cfg.runs(r.Service) })...)
	return s, nil
}

// Audited calls act, which has one entry in the audit, whatever it does.
func (s *Server) Audited(ctx context.Context, action, target, reason string, detail map[string]any, act func(ctx context.Context) error) error {
	return s.audit.do(ctx, entry{action, target, reason, detail}, act)
}

// Tree returns the supervision tree; all lists the children of dynamic supervisors, too.
func (s *Server) Tree(all bool) api.TreeNode { return s.tree.describe(all) }

// Order carries out the order to the tree that r asks for, as POST /admin/tree/* does. accepted
// answers before an order that stops this server; others return the node.
func (s *Server) Order(ctx context.Context, r api.Request, accepted func(shown api.Plan) error) (any, error) {
	return s.tree.give(ctx, r, accepted)
}
