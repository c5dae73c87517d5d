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
	ops                    // bypasses request actors
)

func (d domain) String() string {
	return [...]string{"fleet", "submit", "transfer", "query", "hook", "ops"}[d]
}

// limit is how long a request usually may take; operators are shown those that
// take longer.
func (d domain) limit() time.Duration {
	if d == transfer {
		return time.Hour
	}
	return 30 * time.Second
}

// handler serves a route. ctx is that of the request actor; it ends with the
// request's.
type handler func(ctx context.Context, c echo.Context) error

// route is one row of the table.
type route struct {
	method string
	path   string
	access access
	domain domain
	// bypass routes run without an actor, so that they work when those don't.
	bypass bool
	handle handler
	// body is the most bytes of a refused body that are read to the end, so
	// that the client sees the refusal.
	body int64
}

// routes is everything that this server answers. More than one method in a row
// is parted by a blank.
func (s *Server) routes() []route {
	const (
		get  = http.MethodGet
		head = http.MethodGet + " " + http.MethodHead
		post = http.MethodPost
		both = http.MethodGet + " " + http.MethodPost
	)
	source, result, small := s.cfg.MaxSource+s.cfg.MaxCerts+formSlack, s.cfg.MaxResult+formSlack, s.cfg.MaxJSON
	return []route{
		{post, "/api/builds", apiKey, transfer, false, s.submitWith(http.StatusCreated), source},
		{post, "/api/builds/submit", apiKey, transfer, false, s.submitWith(http.StatusOK), source},
		{get, "/api/builds", apiKey, query, false, s.handleBuildList, small},
		{get, "/api/builds/active", apiKey, query, false, s.handleBuildActive, small},
		{get, "/api/builds/statistics", apiKey, query, false, s.handleBuildStatistics, small},
		{get, "/api/builds/:id", apiKey, query, false, s.handleBuildShow, small},
		{get, "/api/builds/:id/status", buildKey, query, false, s.handleBuildStatus, small},
		{get, logsPath, buildKey, query, false, s.handleBuildLogs, small}, // see serveLogs
		{head, "/api/builds/:id/download", buildKey, transfer, false, s.handleBuildDownload, small},
		{head, "/api/builds/:id/download/:type", buildKey, transfer, false, s.handleBuildDownload, small},
		{post, "/api/builds/:id/cancel", apiKey, submit, false, s.handleBuildCancel, small},
		{post, "/api/builds/:id/retry", buildKey, submit, false, s.handleBuildRetry, small},

		{head, "/api/builds/:id/source", workerKey, transfer, false, s.handleBuildSource, small},
		{head, "/api/builds/:id/certs", workerKey, transfer, false, s.handleBuildCerts, small},
		{get, "/api/builds/:id/certs-secure", holderKey, transfer, false, s.handleBuildCertsSecure, small},
		{post, "/api/builds/:id/telemetry", monitorKey, fleet, false, s.handleBuildTelemetry, small},
		{post, "/api/builds/:id/logs", workerKey, fleet, false, s.handleBuildLogsPost, small},
		{post, "/api/builds/:id/heartbeat", apiKey, fleet, false, s.handleBuildHeartbeat, small},

		{post, registerPath, apiKey, fleet, false, s.handleWorkerRegister, small},
		{post, "/api/workers/unregister", apiKey, fleet, false, s.handleWorkerUnregister, small},
		{post, "/api/workers/:id/unregister", apiKey, fleet, false, s.handleWorkerUnregisterID, small},
		{post, "/api/workers/fail", apiKey, fleet, false, s.handleWorkerFail, small},
		{post, "/api/workers/heartbeat", apiKey, fleet, false, s.handleWorkerHeartbeat, small},
		{get, "/api/workers", apiKey, query, false, s.handleWorkerList, small},
		{get, "/api/workers/:id", apiKey, query, false, s.handleWorkerShow, small},
		{get, "/api/workers/:id/stats", apiKey, query, false, s.handleWorkerStats, small},
		{post, "/api/workers/:id/drain", apiKey, submit, false, s.drainWith(true), small},
		{post, "/api/workers/:id/resume", apiKey, submit, false, s.drainWith(false), small},
		{http.MethodDelete, "/api/workers/:id", apiKey, submit, false, s.handleWorkerDelete, small},
		{both, pollPath, apiKey, fleet, false, nil, small}, // see servePoll
		{post, "/api/workers/upload", apiKey, transfer, false, s.handleWorkerUpload, result},
		{post, "/api/workers/result", apiKey, transfer, false, s.handleWorkerUpload, result},

		{post, "/api/diagnostics/report", apiKey, fleet, false, s.handleDiagnosticReport, small},
		{get, "/api/diagnostics/:worker_id", apiKey, query, false, s.handleDiagnosticList, small},
		{get, "/api/diagnostics/:worker_id/latest", apiKey, query, false, s.handleDiagnosticLatest, small},

		{head, "/api/stats", public, query, false, s.handleStats, small},
		{head, "/public/stats", public, query, false, s.handleStats, small},
		{get, eventsPath, apiKey, query, false, nil, small}, // see serveEvents
		{post, "/api/deployments", apiKey, submit, false, s.handleDeploymentCreate, small},
		{get, "/api/deployments", apiKey, query, false, s.handleDeploymentList, small},
		{get, "/api/deployments/:id", apiKey, query, false, s.handleDeployment, small},
		{get, deploymentEventsPath, apiKey, query, false, nil, small}, // see serveDeploymentEvents
		{post, "/api/deployments/:id/cancel", apiKey, submit, false, s.handleDeploymentCancel, small},
		{post, "/api/deployments/:id/pause", apiKey, submit, false, s.handleDeploymentPause, small},
		{post, "/api/deployments/:id/resume", apiKey, submit, false, s.handleDeploymentResume, small},
		{post, "/api/deployments/:id/retry", apiKey, submit, false, s.handleDeploymentRetry, small},
		{post, "/api/hubspot/action", public, hook, false, s.handleHubSpotAction, small}, // signed
		{get, "/api/oauth/authorize", public, submit, false, s.handleOAuthAuthorize, small},
		{get, "/api/oauth/callback", public, submit, false, s.handleOAuthCallback, small},
		{post, "/api/config", apiKey, submit, false, s.handleConfigPut, small},
		{get, "/api/config/:portal_id", apiKey, query, false, s.handleConfigList, small},
		{get, "/api/config/:portal_id/:action_id", apiKey, query, false, s.handleConfig, small},
		{http.MethodDelete, "/api/config/:portal_id/:action_id", apiKey, submit, false, s.handleConfigDelete, small},

		{head, "/", public, ops, true, s.handleHome(), small},
		{head, "/health", public, ops, true, s.handleHealth, small},
		{head, "/api/health", public, ops, true, s.handleHealth, small},
		{head, "/livez", public, ops, true, s.handleLive, small},
		{head, "/readyz", public, ops, true, s.handleReady, small},
		{head, "/healthz", public, ops, true, s.handleReady, small},
		{head, "/openapi.yaml", public, ops, true, s.handleOpenAPI(), small},
		{get, "/metrics", public, ops, true, s.handleMetrics(), small},
		{get, "/admin/tree", adminKey, ops, true, s.handleAdminTree, small},
		{get, "/admin/tree/*", adminKey, ops, true, s.handleAdminTree, small},
		{post, "/admin/tree/*", adminKey, ops, true, s.handleOrder, small},
		{get, "/admin/heartbeat", adminKey, ops, true, s.handleHeartbeat, small},
		{http.MethodPut, "/admin/heartbeat", adminKey, ops, true, s.handleHeartbeatPut, small},
		{get, "/admin/heijunka", adminKey, ops, true, s.handleLoad, small},
		{http.MethodPut, "/admin/heijunka/limits", adminKey, ops, true, s.handleLoadLimits, small},
		{post, "/admin/heijunka/pools/:name/scale", adminKey, ops, true, s.handleLoadScale, small},
		{post, "/admin/heijunka/rebalance", adminKey, ops, true, s.handleLoadRebalance, small},
		{http.MethodPut, "/admin/heijunka/affinity", adminKey, ops, true, s.handleLoadAffinity, small},
		{post, "/admin/heijunka/surge", adminKey, ops, true, s.handleLoadSurge, small},
		{get, "/admin/audit", adminKey, ops, true, s.handleAudit, small},
		{get, "/admin/throttle/queues", adminKey, ops, true, s.handleQueues, small},
		{get, "/admin/throttle/queues/:id", adminKey, ops, true, s.handleQueue, small},
		{post, "/admin/throttle/queues/:id/pause", adminKey, ops, true, s.pauseWith(true), small},
		{post, "/admin/throttle/queues/:id/resume", adminKey, ops, true, s.pauseWith(false), small},
		{post, "/admin/throttle/queues/:id/redrive", adminKey, ops, true, s.handleRedrive, small},
		{post, "/admin/throttle/rekey", adminKey, ops, true, s.handleRekey, small},
	}
}
