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
var ReportDiagnostics = declare[PostDiagnostic, PostedDiagnostic](diagnostics, APIKey, scopeWorker, Fleet, "POST /api/diagnostics/report", Route{
	ID: "reportDiagnostics", Errors: []int{404, 507}, Summary: "Store a diagnostic report",
})

// ListDiagnostics is GET /api/diagnostics/:worker_id.
var ListDiagnostics = declare[ListDiagnosticsIn, DiagnosticReports](diagnostics, APIKey, scopeRead, Query, "GET /api/diagnostics/:worker_id", Route{
	ID: "listDiagnostics", Summary: "List a worker's reports, newest first",
})

// ShowLatestDiagnostic is GET /api/diagnostics/:worker_id/latest.
var ShowLatestDiagnostic = declare[DiagnosticPath, DiagnosticReport](diagnostics, APIKey, scopeRead, Query, "GET /api/diagnostics/:worker_id/latest", Route{
	ID: "showLatestDiagnostic", Summary: "Show a worker's last report",
})
