package http

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
	"takt/store/tracing"
)

const (
	// maxWait is the longest wait that a poll may ask for.
	maxWait = 60 * time.Second
	// maxActive is the most builds that a poll may list, and maxBuilds the most that it may ask
	// for.
	maxActive = 1000
	maxBuilds = 256
)

// polls serves workers' requests for work, alone or with the end of a build (see ends).
type polls struct {
	edge   *edge.Server
	cfg    Config
	queue  Queue
	tokens *store.WorkerTokens
	bound  *bindings
	quota  *edge.Quota // per worker; nil: no limit
	parked prometheus.Gauge
}

func newPolls(s *edge.Server, cfg Config, queue Queue, tokens *store.WorkerTokens, bound *bindings, parked prometheus.Gauge) *polls {
	return &polls{edge: s, cfg: cfg, queue: queue, tokens: tokens, bound: bound, quota: edge.NewQuota("poll", cfg.PollRate), parked: parked}
}

func (h *polls) routes() []edge.Route {
	get, post := h.edge.Of(api.Poll.Route), h.edge.Of(api.PollByPost.Route)
	get.Serve, post.Serve = h.serve, h.serve
	return []edge.Route{get, post}
}

// serve answers a poll. Its arrival runs as a levelled request. It waits for a transaction
// or for a build without that request's token and place: only its connection waits.
func (h *polls) serve(c echo.Context, r *edge.Route) error {
	req, wait, err := h.read(c.Request())
	if err != nil {
		return err
	}
	if err := h.quota.Admit(c.Response().Header(), h.quotaKey(c, req)); err != nil {
		return err
	}
	if b := edge.Watched(c.Request()); b != nil {
		b.Finish() // net/http detects a disconnect only after the body was read
	}
	var await store.AwaitReply
	err = h.edge.Do(c, r, func(ctx context.Context) (err error) {
		if err = h.bound.check(ctx, edge.KeyOf(c), req.Token); err == nil {
			await, err = h.queue.Arrive(ctx, req, wait)
		}
		return err
	})
	if await == nil {
		return err
	}
	reply, err := h.wait(c.Request().Context(), req, await, err)
	if err != nil {
		return err
	}
	return h.edge.Reply(c, h.answer(c.Request().Context(), req, reply))
}

// answer returns the reply to a poll as it is sent.
func (h *polls) answer(ctx context.Context, req store.PollRequest, reply store.PollReply) api.PollReply {
	answer := api.NewPollReply(reply, req.Max > 0, h.cfg.BaseImageID)
	trace := func(j *api.Job) { j.Traceparent = tracing.Traceparent(tracing.Build(ctx, j.ID, j.Attempt)) }
	if len(answer.Jobs) == 0 && answer.Job != nil {
		trace(answer.Job)
	}
	for i := range answer.Jobs { // Job is the first of them
		trace(&answer.Jobs[i])
	}
	return answer
}

// quotaKey is the key under which a poll is counted. A worker with a token has its own
// quota. A worker without one shares the quota of its id with everybody who names that
// id with the same key, because ids can be read in lists.
func (h *polls) quotaKey(c echo.Context, req store.PollRequest) string {
	if n := req.Token.Worker; n != 0 {
		return string([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	return h.edge.ShareOf(c).Credential + " " + req.WorkerID
}

// wait waits for the reply of a poll. When the server closes, a poll without one is answered
// at once. The presented token stays valid, because the worker was not handed a build.
func (h *polls) wait(ctx context.Context, req store.PollRequest, await store.AwaitReply, ended error) (store.PollReply, error) {
	h.parked.Inc()
	defer h.parked.Dec()
	if ended != nil { // the request was ended after the poll had arrived
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		cancel(ended)
	}
	closing := edge.Stopping(ctx)
	reply, err := await(ctx, closing.Done())
	if err != nil && closing.Err() != nil && ctx.Err() == nil && req.Presented != "" && store.CodeOf(err) == store.Unavailable {
		return store.PollReply{Token: req.Presented}, nil
	}
	return reply, err
}

// read reads a poll and checks its token. It ignores the body of a POST.
func (h *polls) read(r *http.Request) (req store.PollRequest, wait time.Duration, err error) {
	req.Presented = edge.Header(r.Header, edge.HeaderWorkerToken)
	if req.Instance = edge.Header(r.Header, edge.HeaderInstance); req.Instance != "" && !store.ValidID(req.Instance) {
		return req, 0, edge.Invalid("Invalid X-Worker-Instance header")
	}
	if r.URL.RawQuery != "" {
		q := r.URL.Query()
		req.WorkerID = q.Get("worker_id")
		if wait, err = api.ParseDuration(cmp.Or(q.Get("wait"), "0")); err != nil || wait < 0 || wait > maxWait {
			return req, 0, edge.Invalid("wait must be 0 to 60 seconds")
		}
		if req.Active, req.Reconcile, err = pollActive(q); err != nil {
			return req, 0, err
		}
		if n := q.Get("max"); n != "" {
			if req.Max, err = strconv.Atoi(n); err != nil || req.Max < 1 || req.Max > maxBuilds {
				return req, 0, edge.Invalid("max must be 1 to 256")
			}
		}
	}
	switch {
	case req.Presented != "":
		req.WorkerID = "" // the token identifies the worker
		req.Token, err = h.tokens.Check(req.Presented)
	case req.WorkerID == "":
		return req, 0, edge.Invalid("X-Worker-Token header or worker_id required")
	case !store.ValidID(req.WorkerID):
		return req, 0, workerNotFound()
	default:
		err = h.tokens.Ready()
	}
	return req, wait, err
}

func pollActive(q url.Values) (ids []string, present bool, err error) {
	if !q.Has("active") {
		return nil, false, nil
	}
	for id := range strings.SplitSeq(q.Get("active"), ",") {
		if id == "" {
			continue
		}
		if !store.ValidID(id) || len(ids) == maxActive {
			return nil, false, edge.Invalid("active must be a list of build ids")
		}
		ids = append(ids, id)
	}
	return ids, true, nil
}

// bindings checks that a worker's token belongs to the worker that the key is for.
type bindings struct {
	store Workers
	// ids has the ids of workers by their numbers, which never change: one for each key that
	// was used by its worker.
	ids sync.Map
}

// check returns an error if t is another worker's token than that of k. One of an unknown worker
// is left to the caller. An enrolled key without a worker gets InvalidToken, so that a worker
// registers with it: else who never does could be any.
func (b *bindings) check(ctx context.Context, k *store.NamedKey, t store.WorkerToken) error {
	if k.Binds() && k.Worker == "" {
		return store.ErrInvalidToken()
	}
	if k == nil || k.Worker == "" || t.Worker == 0 {
		return nil
	}
	if id, found := b.ids.Load(t.Worker); found && id == k.Worker {
		return nil
	}
	id, err := b.store.IDOf(ctx, t.Worker)
	if store.CodeOf(err) == store.NotFound {
		return nil
	}
	if err == nil {
		err = k.Of(id)
	}
	if err == nil {
		b.ids.Store(t.Worker, id)
	}
	return err
}

// misuse reports to operators, once a minute for each key, that a key was shown by another worker than its
// own, or by another process while that one lives.
type misuse struct {
	deps Deps

	mu   sync.Mutex           // guards what follows
	last map[string]time.Time // by key
}

// report writes into the audit and the log. The fleet shows it at the key's worker.
func (m *misuse) report(k *store.NamedKey, address string, refused error) {
	now, what := time.Now(), edge.FailureOf(refused)
	if !m.due(k.Name, now) {
		return
	}
	m.deps.Logger.Warn().Str("key", k.Name).Str("worker", k.Worker).Str("address", address).Str("code", string(what.Code)).
		Msg("key of a worker refused: another one has sent it")
	m.deps.Background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeoutCause(ctx, auditPatience, errSlowAudit)
		defer cancel()
		detail, _ := json.Marshal(map[string]string{"worker": k.Worker}) // can't fail
		_, _ = m.deps.Audit.Append(ctx, store.AuditEntry{                // the log has it too
			At: now, Actor: "key " + k.Name + "@" + address, Action: "use key of a worker", Target: "key/" + k.Name, Detail: detail, Outcome: what.Message,
		})
		if k.Worker != "" {
			_, _, _ = m.deps.Workers.Conflict(ctx, k.Worker, address)
		}
	})
}

// due reports whether a misuse of a key at now is to be reported.
func (m *misuse) due(key string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at, found := m.last[key]; found && now.Sub(at) < time.Minute {
		return false
	}
	if m.last == nil {
		m.last = map[string]time.Time{}
	}
	m.last[key] = now
	return true
}
