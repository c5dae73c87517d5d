package api

// ShowStats is GET /api/stats.
var ShowStats = declare[None, Stats](Route{
	ID: "showStats", Method: "GET HEAD", Path: "/api/stats",
	Tag: "health", Access: Public, Class: Query,
	Says:    "At most ten seconds old.",
	Summary: "Show public figures",
})

// ShowPublicStats is GET /public/stats.
var ShowPublicStats = declare[None, Stats](Route{
	ID: "showPublicStats", Method: "GET HEAD", Path: "/public/stats",
	Tag: "health", Access: Public, Class: Query,
	Says:    "At most ten seconds old.",
	Summary: "Show public figures, at their other address",
})

// ShowHome is GET /.
var ShowHome = declare[None, None](Route{
	ID: "showHome", Method: "GET HEAD", Path: "/",
	Tag: "health", Access: Public, Class: Ops,
	Says: "At most ten seconds old.", Media: []string{"text/html"},
	Replies: []Reply{{
		Status: 503, Says: "The database is away; the page says so.", Headers: []string{"Retry-After"},
		Media: []string{"text/html"}, Sends: Problem{},
	}},
	Summary: "Show how the fleet does, as a page",
})

// ShowHealth is GET /health.
var ShowHealth = declare[None, Health](Route{
	ID: "showHealth", Method: "GET HEAD", Path: "/health",
	Tag: "health", Access: Public, Class: Ops,
	Says:    "It is so.",
	Summary: "Show the queue and storage",
})

// ShowHealthAlias is GET /api/health.
var ShowHealthAlias = declare[None, Health](Route{
	ID: "showHealthAlias", Method: "GET HEAD", Path: "/api/health",
	Tag: "health", Access: Public, Class: Ops,
	Says:    "It is so.",
	Summary: "As /health",
})

// IsAlive is GET /livez.
var IsAlive = declare[None, Status](Route{
	ID: "isAlive", Method: "GET HEAD", Path: "/livez",
	Tag: "health", Access: Public, Class: Ops,
	Says:    "It is so.",
	Summary: "The process answers",
})

// IsReady is GET /readyz.
var IsReady = declare[None, Status](Route{
	ID: "isReady", Method: "GET HEAD", Path: "/readyz",
	Tag: "health", Access: Public, Class: Ops,
	Says:    "It is so.",
	Summary: "The controller can work",
})

// IsHealthy is GET /healthz.
var IsHealthy = declare[None, Status](Route{
	ID: "isHealthy", Method: "GET HEAD", Path: "/healthz",
	Tag: "health", Access: Public, Class: Ops,
	Says:    "It is so.",
	Summary: "As /readyz",
})

// ShowMetrics is GET /metrics.
var ShowMetrics = declare[None, None](Route{
	ID: "showMetrics", Method: "GET", Path: "/metrics",
	Tag: "health", Access: Public, Class: Ops, Errors: []int{403},
	Says:    "In the form that `Accept` asks for, at most a second old. With a right `X-API-Key` or `X-Admin-Key` it has exemplars.",
	Media:   []string{"text/plain", "application/openmetrics-text"},
	Summary: "Figures for Prometheus",
})

// ShowOpenAPI is GET /openapi.yaml.
var ShowOpenAPI = declare[None, None](Route{
	ID: "showOpenAPI", Method: "GET HEAD", Path: "/openapi.yaml",
	Tag: "health", Access: Public, Class: Ops, Errors: []int{412, 416},
	Says: "OpenAPI 3.1.", Media: []string{"application/yaml"}, Headers: []string{"ETag"},
	Replies: []Reply{{Status: 304, Says: "`If-None-Match` names this version.", Headers: []string{"ETag"}}},
	Summary: "This document",
})
