package api

// ShowStats is GET /api/stats.
var ShowStats = declare[None, Stats](health, Public, Query, "GET HEAD /api/stats", Route{
	ID: "showStats", Summary: "Show public figures",
	Says: "At most ten seconds old.",
})

// ShowPublicStats is GET /public/stats.
var ShowPublicStats = declare[None, Stats](health, Public, Query, "GET HEAD /public/stats", Route{
	ID: "showPublicStats", Summary: "Show public figures, at their other address",
	Says: "At most ten seconds old.",
})

// ShowHome is GET /.
var ShowHome = declare[None, None](health, Public, Ops, "GET HEAD /", Route{
	ID: "showHome", Media: []string{"text/html"}, Summary: "Show how the fleet does, as a page",
	Says:    "At most ten seconds old.",
	Replies: []Reply{{Status: 503, Says: "The database is away; the page says so.", Headers: []string{"Retry-After"}, Media: []string{"text/html"}, Sends: Problem{}}},
})

// ShowHealth is GET /health.
var ShowHealth = declare[None, Health](health, Public, Ops, "GET HEAD /health", Route{ID: "showHealth", Says: "It is so.", Summary: "Show the queue and storage"})

// ShowHealthAlias is GET /api/health.
var ShowHealthAlias = declare[None, Health](health, Public, Ops, "GET HEAD /api/health", Route{ID: "showHealthAlias", Says: "It is so.", Summary: "As /health"})

// IsAlive is GET /livez.
var IsAlive = declare[None, Status](health, Public, Ops, "GET HEAD /livez", Route{ID: "isAlive", Says: "It is so.", Summary: "The process answers"})

// IsReady is GET /readyz.
var IsReady = declare[None, Status](health, Public, Ops, "GET HEAD /readyz", Route{ID: "isReady", Says: "It is so.", Summary: "The controller can work"})

// IsHealthy is GET /healthz.
var IsHealthy = declare[None, Status](health, Public, Ops, "GET HEAD /healthz", Route{ID: "isHealthy", Says: "It is so.", Summary: "As /readyz"})

// ShowMetrics is GET /metrics.
var ShowMetrics = declare[None, None](health, Public, Ops, "GET /metrics", Route{
	ID: "showMetrics", Errors: []int{403}, Media: []string{"text/plain", "application/openmetrics-text"}, Summary: "Figures for Prometheus",
	Says: "In the form that `Accept` asks for, at most a second old. With a right `X-API-Key` or `X-Admin-Key` it has exemplars.",
})

// ShowOpenAPI is GET /openapi.yaml.
var ShowOpenAPI = declare[None, None](health, Public, Ops, "GET HEAD /openapi.yaml", Route{
	ID: "showOpenAPI", Errors: []int{412, 416}, Headers: []string{"ETag"}, Media: []string{"application/yaml"}, Summary: "This document",
	Says:    "OpenAPI 3.1.",
	Replies: []Reply{{Status: 304, Says: "`If-None-Match` names this version.", Headers: []string{"ETag"}}},
})
