package api

// ListDiagnosticsIn is the input of ListDiagnostics.
type ListDiagnosticsIn struct {
	WorkerID WorkerID `path:"worker_id"`
	Limit    int      `query:"limit" min:"1" default:"10"`
}

// DiagnosticPath is the input of ShowLatestDiagnostic.
type DiagnosticPath struct {
	WorkerID WorkerID `path:"worker_id"`
}

// ReportDiagnostics is POST /api/diagnostics/report.
var ReportDiagnostics = declare[PostDiagnostic, PostedDiagnostic](Route{
	ID: "reportDiagnostics", Method: "POST", Path: "/api/diagnostics/report",
	Service: ServiceBuilds, Tag: "diagnostics", Access: APIKey, Class: Fleet, Errors: []int{404, 507},
	Summary: "Keep a diagnostic report",
})

// ListDiagnostics is GET /api/diagnostics/:worker_id.
var ListDiagnostics = declare[ListDiagnosticsIn, DiagnosticReports](Route{
	ID: "listDiagnostics", Method: "GET", Path: "/api/diagnostics/:worker_id",
	Service: ServiceBuilds, Tag: "diagnostics", Access: APIKey, Class: Query,
	Summary: "List a worker's reports, newest first",
})

// ShowLatestDiagnostic is GET /api/diagnostics/:worker_id/latest.
var ShowLatestDiagnostic = declare[DiagnosticPath, DiagnosticReport](Route{
	ID: "showLatestDiagnostic", Method: "GET", Path: "/api/diagnostics/:worker_id/latest",
	Service: ServiceBuilds, Tag: "diagnostics", Access: APIKey, Class: Query,
	Summary: "Show a worker's last report",
})
