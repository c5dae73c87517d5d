package api

// ShowStats is GET /api/stats.
var ShowStats = declare[None, Stats](health, Public, scopeNone, Query, "GET HEAD /api/stats", Route{
	ID: "showStats", Summary: "Show public statistics",
	Says: "At most ten seconds old.",
})

// ShowPublicStats is GET /public/stats.
var ShowPublicStats = declare[None, Stats](health, Public, scopeNone, Query, "GET HEAD /public/stats", Route{
	ID: "showPublicStats", Summary: "As /api/stats",
	Says: "At most ten seconds old.",
})

// ShowHome is GET /.
var ShowHome = declare[None, None](health, Public, scopeNone, Ops, "GET HEAD /", Route{
	ID: "showHome", Media: []string{"text/html"}, Summary: "Show the public page",
	Says:    "At most ten seconds old.",
	Replies: []Reply{{Status: 503, Says: "The database is unavailable; the page says so.", Headers: []string{"Retry-After"}, Media: []string{"text/html"}, Sends: Problem{}}},
})

// ShowHealth is GET /health.
var ShowHealth = declare[None, Health](health, Public, scopeNone, Ops, "GET HEAD /health", Route{ID: "showHealth", Says: "The state of queue and storage.", Summary: "Show the queue and the storage"})

// ShowHealthAlias is GET /api/health.
var ShowHealthAlias = declare[None, Health](health, Public, scopeNone, Ops, "GET HEAD /api/health", Route{ID: "showHealthAlias", Says: "The state of queue and storage.", Summary: "As /health"})

// IsAlive is GET /livez.
var IsAlive = declare[None, Status](health, Public, scopeNone, Ops, "GET HEAD /livez", Route{ID: "isAlive", Says: "The process answers.", Summary: "Check whether the process answers"})

// IsReady is GET /readyz.
var IsReady = declare[None, Status](health, Public, scopeNone, Ops, "GET HEAD /readyz", Route{ID: "isReady", Says: "The controller is ready.", Summary: "Check whether the controller can work"})

// IsHealthy is GET /healthz.
var IsHealthy = declare[None, Status](health, Public, scopeNone, Ops, "GET HEAD /healthz", Route{ID: "isHealthy", Says: "The controller is ready.", Summary: "As /readyz"})

// ShowMetrics is GET /metrics.
var ShowMetrics = declare[None, None](health, Public, scopeNone, Ops, "GET /metrics", Route{
	ID: "showMetrics", Errors: []int{403}, Media: []string{"text/plain", "application/openmetrics-text"}, Summary: "Show metrics for Prometheus",
	Says: "In the form that `Accept` asks for, at most a second old. With the API key, the admin key or a key with the scope read it has exemplars.",
})

// ShowOpenAPI is GET /openapi.yaml.
var ShowOpenAPI = declare[None, None](health, Public, scopeNone, Ops, "GET HEAD /openapi.yaml", Route{
	ID: "showOpenAPI", Errors: []int{412, 416}, Headers: []string{"ETag"}, Media: []string{"application/yaml"}, Summary: "Show this document",
	Says:    "OpenAPI 3.1.",
	Replies: []Reply{{Status: 304, Says: "`If-None-Match` names this version.", Headers: []string{"ETag"}}},
})
