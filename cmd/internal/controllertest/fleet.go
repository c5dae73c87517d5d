package controllertest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
)

func (c *Controller) register(_ http.ResponseWriter, r *http.Request) (int, any) {
	var in api.Register
	var can api.Capabilities
	if json.NewDecoder(r.Body).Decode(&in) != nil || in.Name == "" || json.Unmarshal(in.Capabilities, &can) != nil {
		return refuse(http.StatusUnprocessableEntity, store.RegistrationFailed, "Registration failed")
	}
	if in.ID == "" {
		c.serial++
		in.ID = "worker-" + strconv.Itoa(c.serial)
	}
	status := "re-registered"
	known := c.workers[in.ID]
	if known == nil {
		status = "registered"
		known = &Worker{ID: in.ID, Name: in.Name}
		c.workers[in.ID] = known
	}
	known.Platforms, known.Slots, known.Gone = can.Platforms, max(can.MaxConcurrentBuilds, 1), false
	known.Capabilities = can
	known.Registrations++
	if in.ActiveBuilds != nil {
		c.giveBack(known.ID, in.ActiveBuilds)
	}
	known.token, known.before = store.NewBuildToken()[:32], ""
	return http.StatusOK, api.Registered{ID: in.ID, AccessToken: known.token, Status: status, Message: "Worker " + status, BaseImageID: c.image, Features: can.Features}
}

// giveBack makes the builds pending that a worker holds but does not list.
func (c *Controller) giveBack(worker string, running []string) {
	for id, b := range c.builds {
		if b.WorkerID == worker && b.State.Held() && !slices.Contains(running, id) {
			b.State, b.WorkerID = store.Pending, ""
		}
	}
}

func (c *Controller) report(_ http.ResponseWriter, r *http.Request) (int, any) {
	var in api.PostDiagnostic
	if json.NewDecoder(r.Body).Decode(&in) != nil || c.workers[in.WorkerID] == nil {
		return refuse(http.StatusNotFound, store.NotFound, "Worker not found")
	}
	c.workers[in.WorkerID].Report = in
	return http.StatusOK, api.PostedDiagnostic{ID: "report", Status: "stored"}
}

func (c *Controller) byToken(token string) *Worker {
	for _, w := range c.workers {
		if token != "" && (token == w.token || token == w.before) {
			return w
		}
	}
	return nil
}

func (c *Controller) poll(w http.ResponseWriter, r *http.Request) {
	seconds, _ := strconv.Atoi(r.URL.Query().Get("wait"))
	limit := time.NewTimer(time.Duration(seconds) * time.Second)
	defer limit.Stop()
	c.count(1)
	defer c.count(-1)
	token := r.Header.Get(api.HeaderWorkerToken)
	for expired := seconds == 0; ; {
		c.mu.Lock()
		worker := c.byToken(token)
		if worker == nil {
			c.mu.Unlock()
			Problem(w, http.StatusUnauthorized, store.InvalidToken, "Invalid worker token")
			return
		}
		if reply := c.give(worker, r); reply.Job != nil || expired {
			worker.before, worker.token = token, reply.AccessToken
			c.touch()
			c.mu.Unlock()
			JSON(w, http.StatusOK, reply)
			return
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-limit.C:
			expired = true
		case <-r.Context().Done():
			return
		}
	}
}

// give returns the reply to a poll of a worker. The caller makes its token the worker's.
func (c *Controller) give(w *Worker, r *http.Request) api.PollReply {
	repeated := r.Header.Get(api.HeaderWorkerToken) == w.before
	most, _ := strconv.Atoi(r.URL.Query().Get("max"))
	reply := api.PollReply{AccessToken: store.NewBuildToken()[:32]}
	jobs := c.next(w, repeated, strings.Split(r.URL.Query().Get("active"), ","), max(most, 1))
	if len(jobs) == 0 {
		return reply
	}
	if reply.Job = &jobs[0]; most > 0 && !c.earlier {
		reply.Jobs = jobs
	}
	return reply
}

// withNext adds the worker's next build to a reply, if the request asks for that.
func (c *Controller) withNext(r *http.Request, reply api.Uploaded) (int, any) {
	token := r.Header.Get(api.HeaderWorkerToken)
	if w := c.byToken(token); w != nil && r.URL.Query().Get("next") == "1" && !c.earlier {
		next := c.give(w, r)
		w.before, w.token = token, next.AccessToken
		reply.Job, reply.AccessToken = next.Job, next.AccessToken
	}
	return http.StatusOK, reply
}

// count adds n to the number of open polls.
func (c *Controller) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.polls += n
	close(c.counted)
	c.counted = make(chan struct{})
}

// next assigns up to most builds to a worker. If the reply with earlier builds may be lost, it
// returns these again until the worker acknowledges them.
func (c *Controller) next(w *Worker, repeated bool, active []string, most int) (jobs []api.Job) {
	held := 0
	if c.earlier {
		most = 1
	}
	for _, id := range c.order {
		b := c.builds[id]
		if b.WorkerID != w.ID || !b.State.Held() {
			continue
		}
		held++
		if b.State == store.Assigned && (repeated || !slices.Contains(active, id)) && len(jobs) < most {
			jobs = append(jobs, c.job(b))
		}
	}
	if len(jobs) > 0 || w.Draining {
		return jobs
	}
	for _, id := range c.order {
		b := c.builds[id]
		if len(jobs) == most || held+len(jobs) >= w.Slots {
			break
		}
		if b.State == store.Pending && (len(w.Platforms) == 0 || slices.Contains(w.Platforms, b.Platform)) {
			b.State, b.WorkerID = store.Assigned, w.ID
			b.Attempt++
			jobs = append(jobs, c.job(b))
		}
	}
	return jobs
}

func (c *Controller) job(b *Build) api.Job {
	job := api.Job{ID: b.ID, Platform: b.Platform, SourceURL: "/api/builds/" + b.ID + "/source", Attempt: b.Attempt, BaseImageID: c.image}
	if b.Certs != nil {
		url := "/api/builds/" + b.ID + "/certs"
		job.CertsURL = &url
	}
	if b.Inputs != nil {
		url := "/api/builds/" + b.ID + "/inputs"
		job.InputsURL = &url
	}
	return job
}

func (c *Controller) unregister(_ http.ResponseWriter, r *http.Request) (int, any) {
	worker := c.byToken(r.Header.Get(api.HeaderWorkerToken))
	if worker == nil {
		return refuse(http.StatusUnauthorized, store.InvalidToken, "Invalid worker token")
	}
	worker.Gone, worker.token, worker.before = true, "", ""
	return http.StatusOK, api.Unregistered{Success: true, BuildsReassigned: c.reassign(worker)}
}

// held returns the build of a worker's request. If the worker does not hold it, held
// returns nil and the answer. The caller holds the lock.
func (c *Controller) held(id, worker, attempt string) (b *Build, status int, body any) {
	b = c.builds[id]
	n, err := strconv.Atoi(attempt)
	switch {
	case b == nil:
		status, body = refuse(http.StatusNotFound, store.NotFound, "Build not found")
	case err == nil && n < b.Attempt:
		status, body = refuse(http.StatusConflict, store.StaleAttempt, "The build has a newer attempt")
	case b.WorkerID != worker:
		status, body = refuse(http.StatusForbidden, store.NotAssigned, "Build not assigned to this worker")
	default:
		if b.State == store.Assigned {
			b.State = store.Building
		}
		return b, 0, nil
	}
	return nil, status, body
}

func (c *Controller) fromHeader(r *http.Request) (*Build, int, any) {
	return c.held(r.PathValue("id"), r.Header.Get(api.HeaderWorkerID), r.Header.Get(api.HeaderBuildAttempt))
}

// sends answers with a file of a build if the request comes from the build's worker.
func (c *Controller) sends(w http.ResponseWriter, r *http.Request, file func(*Build) []byte) {
	c.mu.Lock()
	b, status, body := c.fromHeader(r)
	if b == nil {
		c.mu.Unlock()
		JSON(w, status, body)
		return
	}
	content := file(b)
	c.touch()
	c.mu.Unlock()
	serveFile(w, r, "application/zip", content)
}

func (c *Controller) source(w http.ResponseWriter, r *http.Request) {
	c.sends(w, r, func(b *Build) []byte { return b.Source })
}

func (c *Controller) certs(w http.ResponseWriter, r *http.Request) {
	c.sends(w, r, func(b *Build) []byte { return b.Certs })
}

func (c *Controller) inputs(_ http.ResponseWriter, r *http.Request) (int, any) {
	b, status, body := c.fromHeader(r)
	if b == nil {
		return status, body
	}
	return http.StatusOK, b.Inputs
}

func (c *Controller) postLogs(_ http.ResponseWriter, r *http.Request) (int, any) {
	var in api.PostLogs
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		return refuse(http.StatusBadRequest, store.InvalidArgument, "Invalid body")
	}
	b, status, body := c.fromHeader(r)
	if b == nil {
		return status, body
	}
	b.Logs = append(b.Logs, in.Logs...)
	count := len(in.Logs)
	return http.StatusOK, api.PostedLogs{Success: true, Count: &count, Cancelled: b.State == store.Cancelled || b.State == store.Failed}
}

func (c *Controller) heartbeat(_ http.ResponseWriter, r *http.Request) (int, any) {
	b, status, body := c.held(r.PathValue("id"), r.URL.Query().Get("worker_id"), r.Header.Get(api.HeaderBuildAttempt))
	if b == nil {
		return status, body
	}
	b.Heartbeats++
	reply := api.HeartbeatReply{Status: "ok", Cancelled: b.State.Final()}
	if w := c.workers[b.WorkerID]; w != nil && w.token == "" && b.State.Held() && r.Header.Get(api.HeaderWorkerToken) != "" {
		w.token = store.NewBuildToken()[:32] // see Expire
		reply.AccessToken = w.token
	}
	return http.StatusOK, reply
}

func (c *Controller) telemetry(_ http.ResponseWriter, r *http.Request) (int, any) {
	var in api.Telemetry
	if json.NewDecoder(r.Body).Decode(&in) != nil {
		return refuse(http.StatusBadRequest, store.InvalidArgument, "Invalid telemetry data")
	}
	b, status, body := c.fromHeader(r)
	if b == nil {
		return status, body
	}
	b.Telemetry = append(b.Telemetry, in)
	return http.StatusOK, api.Status{Status: "ok"}
}

func (c *Controller) upload(_ http.ResponseWriter, r *http.Request) (int, any) {
	fields, files, err := readForm(r)
	if err != nil {
		return refuse(http.StatusBadRequest, store.InvalidArgument, err.Error())
	}
	id := fields["build_id"]
	if b := c.builds[id]; b != nil {
		b.Uploads++
	}
	b, status, body := c.held(id, fields["worker_id"], r.Header.Get(api.HeaderBuildAttempt))
	success := fields["success"] == "true"
	result, sent := files["result"]
	switch {
	case b == nil:
		return status, body
	case b.State.Final() && success != (b.State == store.Completed):
		return refuse(http.StatusConflict, store.Conflict, "Build already finished")
	case success && !sent:
		return refuse(http.StatusBadRequest, store.InvalidArgument, "Missing result file")
	case success:
		b.State, b.Result = store.Completed, result
		return c.withNext(r, api.Uploaded{Success: true, Status: "success"})
	}
	b.State, b.ErrorMessage, b.Fault = store.Failed, fields["error_message"], store.Fault(fields["fault"])
	b.Ended = map[string]string{}
	for _, name := range []string{"exit_code", "signal", "timed_out"} {
		if value, sent := fields[name]; sent {
			b.Ended[name] = value
		}
	}
	return c.withNext(r, api.Uploaded{Success: true, Status: "failed"})
}

// readForm reads a whole form and checks the digests of its files.
func readForm(r *http.Request) (fields map[string]string, files map[string][]byte, err error) {
	fields, files = map[string]string{}, map[string][]byte{}
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, nil, err
	}
	for {
		p, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return fields, files, nil
		}
		if err != nil {
			return nil, nil, err
		}
		content, err := io.ReadAll(p)
		if err != nil {
			return nil, nil, err
		}
		if p.FileName() == "" {
			fields[p.FormName()] = string(content)
			continue
		}
		sum := sha256.Sum256(content)
		want := "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
		if got := p.Header.Get("Content-Digest"); got != "" && got != want {
			return nil, nil, errors.New("content does not match its digest")
		}
		files[p.FormName()] = content
	}
}
