package controllertest

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"takt/http/api"
	"takt/store"
)

// wire returns a worker as the wire type. The caller holds the lock.
func (c *Controller) wire(w *Worker) api.Worker {
	load := 42.0
	out := api.Worker{
		ID: w.ID, Name: w.Name, Status: "idle", State: "idle", Quarantine: w.Quarantine, Suspect: w.Suspect, Draining: w.Draining, Platforms: w.Platforms, Capabilities: json.RawMessage(`{}`),
		MaxConcurrentBuilds: w.Slots, Builds: []string{},
		RegisteredAt: api.FormatTime(submitted()), LastSeenAt: api.FormatTime(submitted()),
		Telemetry: &api.WorkerTelemetry{
			At: api.FormatTime(time.Now()), Type: "heartbeat", Stage: "building", Metrics: api.Metrics{CPUPercent: &load},
		},
		Diagnostics: &api.WorkerDiagnostic{Status: "healthy", RunAt: *api.NewMillis(submitted())},
	}
	for _, id := range c.order {
		if b := c.builds[id]; b.WorkerID == w.ID && b.State.Held() {
			out.Status, out.State, out.Builds = "building", "building", append(out.Builds, id)
		}
	}
	if w.Quarantine != nil {
		out.State = store.WorkerQuarantined
	}
	if w.Suspect != nil {
		out.State = store.WorkerSuspect
	}
	return out
}

func (c *Controller) listWorkers(_ http.ResponseWriter, r *http.Request) (int, any) {
	list := api.WorkerList{Workers: []api.Worker{}}
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		item := c.wire(c.workers[id])
		if s := r.URL.Query().Get("state"); s == "" || s == cmp.Or(item.State, item.Status) {
			list.Workers = append(list.Workers, item)
		}
	}
	list.Total = len(list.Workers)
	return http.StatusOK, list
}

// Quarantine quarantines a worker.
func (c *Controller) Quarantine(id, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers[id].Quarantine = &api.Quarantine{Reason: reason, Until: api.FormatTime(submitted())}
}

// Suspect makes a worker suspect.
func (c *Controller) Suspect(id, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers[id].Suspect = &api.Suspect{Reason: reason, Since: api.FormatTime(submitted()), Until: api.FormatTime(submitted())}
}

// withWorker changes a worker and answers with it.
func (c *Controller) withWorker(change func(*Worker)) http.HandlerFunc {
	return c.locked(func(_ http.ResponseWriter, r *http.Request) (int, any) {
		worker := c.workers[r.PathValue("id")]
		if worker == nil {
			return refuse(http.StatusNotFound, store.NotFound, "Worker not found")
		}
		change(worker)
		return http.StatusOK, c.wire(worker)
	})
}

func (c *Controller) deleteWorker(_ http.ResponseWriter, r *http.Request) (int, any) {
	worker := c.workers[r.PathValue("id")]
	if worker == nil {
		return refuse(http.StatusNotFound, store.NotFound, "Worker not found")
	}
	delete(c.workers, worker.ID)
	return http.StatusOK, api.Unregistered{Success: true, BuildsReassigned: c.reassign(worker), Message: "Worker deleted"}
}

// reassign makes a worker's builds pending again and returns their number. The caller
// holds the lock.
func (c *Controller) reassign(w *Worker) (n int) {
	for _, b := range c.builds {
		if b.WorkerID == w.ID && b.State.Held() {
			b.State, b.WorkerID = store.Pending, ""
			n++
		}
	}
	return n
}
