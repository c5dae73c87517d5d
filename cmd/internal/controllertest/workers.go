package controllertest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"takt/http/api"
	"takt/store"
)

// wire shows a worker as the controller does. The lock is held.
func (c *Controller) wire(w *Worker) api.Worker {
	load := 42.0
	out := api.Worker{
		ID: w.ID, Name: w.Name, Status: "idle", Draining: w.Draining, Platforms: w.Platforms, Capabilities: json.RawMessage(`{}`),
		MaxConcurrentBuilds: w.Slots, Builds: []string{},
		RegisteredAt: api.FormatTime(submitted()), LastSeenAt: api.FormatTime(submitted()),
		Telemetry: &api.WorkerTelemetry{
			At: api.FormatTime(submitted()), Type: "heartbeat", Stage: "building", Metrics: api.Metrics{CPUPercent: &load},
		},
		Diagnostics: &api.WorkerDiagnostic{Status: "healthy", RunAt: *api.NewMillis(submitted())},
	}
	for _, id := range c.order {
		if b := c.builds[id]; b.WorkerID == w.ID && b.State.Held() {
			out.Status, out.Builds = "building", append(out.Builds, id)
		}
	}
	return out
}

func (c *Controller) listWorkers(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := api.WorkerList{Workers: []api.Worker{}}
	for _, id := range slices.Sorted(maps.Keys(c.workers)) {
		item := c.wire(c.workers[id])
		if s := r.URL.Query().Get("status"); s == "" || s == item.Status {
			list.Workers = append(list.Workers, item)
		}
	}
	list.Total = len(list.Workers)
	JSON(w, http.StatusOK, list)
}

// withWorker changes a worker and shows it.
func (c *Controller) withWorker(change func(*Worker)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		worker := c.workers[r.PathValue("id")]
		if worker == nil {
			Problem(w, http.StatusNotFound, store.NotFound, "Worker not found")
			return
		}
		if change != nil {
			change(worker)
			c.touch()
		}
		JSON(w, http.StatusOK, c.wire(worker))
	}
}

func (c *Controller) deleteWorker(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	worker := c.workers[r.PathValue("id")]
	if worker == nil {
		Problem(w, http.StatusNotFound, store.NotFound, "Worker not found")
		return
	}
	n := 0
	for _, b := range c.builds {
		if b.WorkerID == worker.ID && b.State.Held() {
			b.State, b.WorkerID = store.Pending, ""
			n++
		}
	}
	delete(c.workers, worker.ID)
	c.touch()
	JSON(w, http.StatusOK, api.Unregistered{Success: true, BuildsReassigned: n, Message: "Worker deleted"})
}
