package controllertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
)

// submitted returns the submission time of every build.
func submitted() time.Time { return time.Date(2025, 11, 24, 16, 0, 0, 0, time.UTC) }

func (c *Controller) create(w http.ResponseWriter, r *http.Request) (int, any) {
	fields, files, err := readForm(r)
	if err != nil {
		return refuse(http.StatusBadRequest, store.InvalidArgument, err.Error())
	}
	labels, err := store.ParseLabels(fields["labels"])
	switch {
	case err != nil:
		return refuse(http.StatusBadRequest, store.InvalidArgument, err.Error())
	case files["source"] == nil:
		return refuse(http.StatusBadRequest, store.InvalidArgument, "Source file required")
	case !store.Platform(fields["platform"]).Valid():
		return refuse(http.StatusBadRequest, store.InvalidArgument, "Valid platform required (ios|android)")
	}
	key := r.Header.Get(api.HeaderIdempotencyKey)
	b := c.builds[c.keys[key]]
	if b == nil {
		b = c.submit(fields["platform"], files["source"], files["certs"])
		b.Labels, b.Require, b.Prefer, b.Fields = labels, fields["require"], fields["prefer"], fields
		b.Priority, _ = strconv.Atoi(fields["priority"])
		if !c.earlier {
			b.Submitted = inputsOf(fields)
		}
	} else {
		w.Header().Set(api.HeaderReplayed, "true")
	}
	if key != "" {
		c.keys[key] = b.ID
	}
	return http.StatusCreated, api.Submitted{
		ID: b.ID, Status: "pending", Platform: b.Platform, SubmittedAt: *api.NewMillis(submitted()), AccessToken: b.Token,
		Inputs: api.NewTakenInputs(b.Submitted),
	}
}

// inputsOf reads the inputs of a form, which are right.
func inputsOf(fields map[string]string) *store.Inputs {
	i := &store.Inputs{ParamsOptional: fields["params_optional"] == "true"}
	i.Params, _ = store.ParseParams([]byte(fields["params"]))
	i.Secrets, _ = store.ParseSecrets([]byte(fields["secrets"]))
	i.Timeout, _ = store.ParseTimeout(fields["timeout"], store.MaxTimeout)
	i.MaxAttempts, _ = strconv.Atoi(fields["max_attempts"])
	i.RetryOn, _ = store.ParseRetryOn(fields["retry_on"])
	for _, fact := range []string{"commit", "branch", "dirty", "remote"} {
		if fields[fact] != "" {
			_ = i.Set(fact, fields[fact])
		}
	}
	return i
}

func (c *Controller) list(_ http.ResponseWriter, r *http.Request) (int, any) {
	items := []api.BuildItem{}
	query := r.URL.Query()
	for _, id := range slices.Backward(c.order) {
		b := c.builds[id]
		if s := query.Get("status"); s != "" && s != b.State.Wire() {
			continue
		}
		if s := query.Get("state"); s != "" && s != string(b.State) || !strings.Contains(b.ID, query.Get("q")) {
			continue
		}
		if p := query.Get("platform"); p != "" && p != b.Platform {
			continue
		}
		items = append(items, api.BuildItem{
			ID: b.ID, Status: b.State.Wire(), State: string(b.State), Platform: b.Platform,
			CreatedAt: api.FormatTime(submitted()), SubmittedAt: api.FormatTime(submitted()),
			UpdatedAt: api.FormatTime(submitted()), HasResult: b.Result != nil, WorkerID: nullable(b.WorkerID), RetryOf: b.RetryOf,
		})
		if b.State == store.Pending {
			items[len(items)-1].WaitingSince = api.FormatTime(waitingSince())
		}
	}
	if n, err := strconv.Atoi(query.Get("limit")); err == nil && n < len(items) {
		items = items[:n]
	}
	return http.StatusOK, items
}

// waitingSince is since when pending builds wait.
func waitingSince() time.Time { return time.Now().Add(-5 * time.Minute) }

func (c *Controller) status(w http.ResponseWriter, _ *http.Request, b Build) {
	status := api.BuildStatus{
		ID: b.ID, Status: b.State.Wire(), State: string(b.State), Platform: b.Platform, Attempt: b.Attempt,
		SubmittedAt: api.NewMillis(submitted()), WorkerID: nullable(b.WorkerID), ErrorMessage: nullable(b.ErrorMessage),
		Priority: b.Priority, Labels: b.Labels, Require: b.Require, Prefer: b.Prefer, Inputs: api.NewInputs(b.Submitted), RetryOf: b.RetryOf,
	}
	if b.State == store.Cancelled && !c.earlier {
		status.Ended = &api.Ended{Cause: "cancelled", By: "api", Why: b.CancelledFor}
	}
	JSON(w, http.StatusOK, status)
}

// line returns the log entry at index i.
func line(b Build, i int) api.LogEntry {
	return api.LogEntry{Seq: int64(i + 1), Level: b.Logs[i].Level, Message: b.Logs[i].Message, Timestamp: *api.NewMillis(submitted())}
}

func (c *Controller) why(w http.ResponseWriter, _ *http.Request, b Build) {
	why := api.BuildWhy{ID: b.ID, State: string(b.State)}
	if b.State == store.Pending {
		why.WaitingSince = api.NewMillis(waitingSince())
	}
	if b.State == store.Pending && b.Require != "" {
		why.Number, why.Reason, why.Unmatched = 1, "There is no worker for "+b.Platform+" with "+b.Require+".", true
	} else if b.State == store.Pending {
		why.Number, why.Reason, why.Start = 1, "Every slot is busy.", "within 20 s"
	}
	JSON(w, http.StatusOK, why)
}

// logs returns a page of the log. It streams only after Stream, because some controllers
// do not stream.
func (c *Controller) logs(w http.ResponseWriter, r *http.Request, b Build) {
	if r.Header.Get("Accept") == "text/event-stream" && c.streams.Load() {
		c.tail(w, r)
		return
	}
	after, _ := strconv.Atoi(r.URL.Query().Get("after"))
	if last, _ := strconv.Atoi(r.URL.Query().Get("tail")); last > 0 {
		after = max(len(b.Logs)-last, 0)
	}
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	out := api.Logs{BuildID: b.ID, Logs: []api.LogEntry{}}
	for i := after; i < len(b.Logs) && (limit == 0 || len(out.Logs) < limit); i++ {
		out.Logs = append(out.Logs, line(b, i))
	}
	JSON(w, http.StatusOK, out)
}

// tail sends the existing lines, then new ones, until the build ends.
func (c *Controller) tail(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	after, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
	event := func(head string, v any) {
		data, _ := json.Marshal(v) // can't fail: only plain members
		_, _ = fmt.Fprintf(w, "%sdata: %s\n\n", head, data)
	}
	for {
		c.mu.Lock()
		changed := c.changed
		b := c.copyOf(r.PathValue("id"))
		c.mu.Unlock()
		for ; after < len(b.Logs); after++ {
			event(fmt.Sprintf("id: %d\nevent: log\n", after+1), line(b, after))
		}
		if b.State.Final() {
			event("event: end\n", api.LogEnd{BuildID: b.ID, Status: b.State.Wire(), State: string(b.State)})
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (c *Controller) download(w http.ResponseWriter, r *http.Request, b Build) {
	if b.State != store.Completed {
		Problem(w, http.StatusBadRequest, store.InvalidState, "Build not completed")
		return
	}
	w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s%s"`, b.ID, store.Platform(b.Platform).ResultExt("")))
	serveFile(w, r, "application/octet-stream", b.Result)
}

func (c *Controller) cancel(_ http.ResponseWriter, r *http.Request) (int, any) {
	b := c.builds[r.PathValue("id")]
	switch {
	case b == nil:
		return refuse(http.StatusNotFound, store.NotFound, "Build not found")
	case b.State.Final():
		return refuse(http.StatusBadRequest, store.InvalidState, "Build already finished")
	}
	b.State, b.ErrorMessage, b.CancelledFor = store.Cancelled, store.MessageCancelled, r.URL.Query().Get("reason")
	return http.StatusOK, api.Cancelled{Status: "cancelled", Success: true}
}

func (c *Controller) retry(w http.ResponseWriter, r *http.Request, old Build) {
	if old.Source == nil {
		Problem(w, http.StatusBadRequest, store.InvalidState, "Original build source no longer available. Please submit a new build.")
		return
	}
	id := c.Submit(old.Platform, old.Source, old.Certs)
	var changes api.RetryBuildChanges
	_ = json.NewDecoder(r.Body).Decode(&changes) // it may have no body
	c.Edit(id, func(b *Build) {
		b.RetryOf = old.ID
		if b.Submitted = old.Submitted; len(changes.Params) > 0 && !c.earlier {
			params, _ := old.Submitted.Params.Change(changes.Params) // they are right
			b.Submitted = &store.Inputs{Params: params}
		}
	})
	b := c.Build(id)
	JSON(w, http.StatusOK, api.Retried{
		ID: b.ID, Status: "pending", SubmittedAt: *api.NewMillis(submitted()), AccessToken: b.Token, OriginalBuildID: old.ID, Inputs: api.NewTakenInputs(b.Submitted),
	})
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
