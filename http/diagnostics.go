package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path"
	"time"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	maxReports = 1000 // in a list
	// keptReports is how many reports of each worker are kept.
	keptReports = 100
)

// diagnostics stores and shows workers' diagnostic reports.
type diagnostics struct {
	edge    *edge.Server
	store   Workers
	files   Files
	queue   Queue
	publish Publish
}

func (h *diagnostics) routes() []edge.Route {
	return []edge.Route{
		edge.OnAs(h.edge, api.ReportDiagnostics, h.report),
		edge.On(h.edge, api.ListDiagnostics, h.list),
		edge.On(h.edge, api.ShowLatestDiagnostic, h.latest),
	}
}

// report handles POST /api/diagnostics/report. A report is a row and a file.
func (h *diagnostics) report(ctx context.Context, in map[string]json.RawMessage) (reply api.PostedDiagnostic, err error) {
	r, err := store.ParseDiagnostic(in)
	if err != nil {
		return reply, err
	}
	if err := edge.CallerOf(ctx).Key.Of(r.WorkerID); err != nil {
		return reply, err
	}
	w, err := h.store.Show(ctx, r.WorkerID) // before anything is written
	if err != nil {
		return reply, err
	}
	if err := h.files.Room(); err != nil {
		return reply, err
	}
	r.ID = store.NewUUID()
	r.File.Name = reportName(r.WorkerID, time.Now())
	if err := h.keep(ctx, r); err != nil {
		return reply, err
	}
	h.trim(ctx, r.WorkerID)
	if r.Status != store.Critical {
		h.queue.Able(r.WorkerID) // the worker may get builds again
	}
	h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{WorkerID: w.ID, Status: w.Status, Draining: w.Draining})
	return api.PostedDiagnostic{ID: r.ID, Status: "stored"}, nil
}

// trim removes reports beyond keptReports. The sweeper removes files that it can't remove
// now.
func (h *diagnostics) trim(ctx context.Context, worker string) {
	files, err := h.store.TrimReports(ctx, worker, keptReports)
	for _, f := range files {
		_, gone := h.files.Remove(f.Name)
		err = errors.Join(err, gone)
	}
	if err != nil {
		h.edge.Log.Warn().Err(err).Str("worker", worker).Msg("old diagnostic reports were not removed")
	}
}

// reportName is the storage name of a report that arrives now. It is unique per worker.
func reportName(worker string, now time.Time) string {
	return path.Join("diagnostics", worker, now.UTC().Format("2006-01-02T15-04-05.000000000Z")+".json")
}

func (h *diagnostics) keep(ctx context.Context, r store.DiagnosticReport) error {
	content, err := edge.Marshal(api.NewDiagnosticReport(r))
	if err != nil {
		return err
	}
	u, err := h.files.Create(ctx, int64(len(content)), "", bytes.NewReader(content))
	if err != nil {
		return err
	}
	defer u.Discard()
	if r.File, err = u.Stage(ctx, r.File.Name); err != nil {
		return err
	}
	return h.store.Report(ctx, r, u)
}

func (h *diagnostics) list(ctx context.Context, in api.ListDiagnosticsIn) (api.DiagnosticReports, error) {
	id := string(in.WorkerID)
	reports, err := h.store.Reports(ctx, id, min(in.Limit, maxReports))
	return api.DiagnosticReports{WorkerID: id, Reports: edge.Each(reports, api.NewDiagnosticReport)}, err
}

func (h *diagnostics) latest(ctx context.Context, in api.DiagnosticPath) (api.DiagnosticReport, error) {
	reports, err := h.store.Reports(ctx, string(in.WorkerID), 1)
	switch {
	case err != nil:
		return api.DiagnosticReport{}, err
	case len(reports) == 0:
		return api.DiagnosticReport{}, store.NewError(store.NotFound, "No diagnostic reports found")
	}
	return api.NewDiagnosticReport(reports[0]), nil
}
