package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// act describes what a form does. It sends the API's handler the same body as a
// program would.
type act struct {
	name   string // key of its text in doneTexts, and its name in the audit
	handle edge.Handler
	// fields are the form fields that go into the body: "reason priority:int".
	fields string
	// target is the prefix of the audit entry's target, before the id; "" if the
	// handler writes the audit itself.
	target string
	// why requires a reason. Handlers that write the audit check it themselves.
	why bool
	// query names the query parameter that is set from the form field of the same
	// name.
	query string
}

// acts lists the routes of forms.
func (d *Dashboard) acts() []edge.Route {
	perform := func(path string, a api.Access, what act) edge.Route {
		return edge.Route{Method: post, Path: path, Access: a, Class: api.Ops, Body: maxForm, Serve: d.guarded, Handle: d.perform(what)}
	}
	of := func(e api.Route) edge.Handler { return d.server.HandlerOf(e.Method, e.Path) }
	return []edge.Route{
		perform("/builds/:id/cancel", api.Reader, act{name: "cancel", handle: of(api.CancelBuild.Route), target: "build"}),
		perform("/builds/:id/retry", api.Reader, act{name: "retry", handle: retried(of(api.RetryBuild.Route)), target: "build"}),
		perform("/builds/:id/requeue", api.Operator, act{name: "requeue", handle: of(api.RequeueBuild.Route), fields: "reason", why: true}),
		perform("/builds/:id/priority", api.Reader, act{name: "priority", handle: of(api.PatchBuild.Route), fields: "priority:int", target: "build"}),
		perform("/fleet/:id/drain", api.Reader, act{name: "drain", handle: of(api.DrainWorker.Route), fields: "reason", target: "worker", why: true}),
		perform("/fleet/:id/resume", api.Reader, act{name: "resume", handle: of(api.ResumeWorker.Route), fields: "reason", target: "worker", why: true}),
		perform("/fleet/:id/delete", api.Reader, act{name: "delete", handle: of(api.DeleteWorker.Route), target: "worker", why: true}),
		perform("/tree/*", api.Operator, act{name: "order", handle: d.treeOrder(d.server.HandlerOf(post, "/admin/tree/*")), fields: "reason", query: "force timeout"}),
		perform("/heijunka/limits", api.Operator, act{
			name: "limits", handle: of(api.ChangeHeijunkaLimits.Route), fields: "soft_limit:int hard_limit:int reserved:float reset:bool for reason",
		}),
		perform("/heijunka/pools/:name", api.Operator, act{name: "scale", handle: of(api.ScalePool.Route), fields: "by:int workers:int min:int max:int for reason"}),
		perform("/heijunka/surge", api.Operator, act{name: "surge", handle: of(api.SurgeHeijunka.Route), fields: "action for reason"}),
		perform("/heijunka/rebalance", api.Operator, act{name: "rebalance", handle: of(api.RebalanceHeijunka.Route), fields: "reason"}),
		perform("/throttle/:id/pause", api.Operator, act{name: "queue-pause", handle: of(api.PauseQueue.Route), fields: "reason", why: true}),
		perform("/throttle/:id/resume", api.Operator, act{name: "queue-resume", handle: of(api.ResumeQueue.Route), fields: "reason", why: true}),
		perform("/throttle/:id/redrive", api.Operator, act{name: "queue-redrive", handle: of(api.RedriveQueue.Route), fields: "reason", why: true}),
		perform("/throttle/:id/rate", api.Reader, act{
			name: "rate", handle: of(api.SetRate.Route), target: "throttle", why: true,
			fields: "portal_id:int action_id:int max_throughput:int time_period:int time_unit",
		}),
		perform("/deployments/:id/cancel", api.Reader, act{name: "deployment-cancel", handle: of(api.CancelDeployment.Route), fields: "reason"}),
		perform("/deployments/:id/pause", api.Reader, act{name: "deployment-pause", handle: of(api.PauseDeployment.Route), fields: "reason"}),
		perform("/deployments/:id/resume", api.Reader, act{name: "deployment-resume", handle: of(api.ResumeDeployment.Route), fields: "reason"}),
		perform("/deployments/:id/retry", api.Reader, act{name: "deployment-retry", handle: of(api.RetryDeployment.Route), fields: "repo token reason"}),
	}
}

// doneTexts are the messages that a page shows after an act.
var doneTexts = map[string]string{ //nolint:gochecknoglobals // a table
	"cancel": "The build is cancelled.", "retry": "The build is submitted again.", "requeue": "The build is pending again.", "priority": "The priority is changed.",
	"drain": "The worker gets no more builds; it finishes those it has.", "resume": "The worker gets builds again.", "delete": "The worker is deleted.",
	"restart": "Restarted, and all is well.", "terminate": "Terminated.", "start": "Started, and all is well.",
	"detached": "The order is being carried out; it restarts what serves this page.",
	"limits":   "The limits are changed.", "scale": "The pool is changed.", "surge": "Done.", "rebalance": "Rebalanced.",
	"queue-pause": "The queue is paused.", "queue-resume": "The queue goes on.", "queue-redrive": "What failed is tried again now.", "rate": "The rate is changed.",
	"deployment-cancel": "The deployment is cancelled.", "deployment-pause": "The deployment is paused.",
	"deployment-resume": "The deployment goes on.", "deployment-retry": "What failed is tried again.",
}

// perform handles the POST of a form and redirects the browser back to its page.
func (d *Dashboard) perform(a act) edge.Handler {
	return func(ctx context.Context, c echo.Context) (any, error) {
		r := c.Request()
		form := r.PostForm // see guarded
		body, err := formBody(form, a.fields)
		if err != nil {
			return nil, err
		}
		why := strings.TrimSpace(store.Text(form.Get("reason")))
		switch {
		case a.why && why == "":
			return nil, edge.Invalid("Say why: a reason is required")
		case len(why) > maxReason:
			return nil, edge.Invalid("reason must have at most 1000 bytes")
		}
		asProgram(r, body, a.query, form)
		reply, err := d.carry(ctx, c, a, why)
		if err != nil {
			return nil, err
		}
		back := ownPath(form.Get("back"), d.front)
		if to, ok := reply.(seeOther); ok {
			back = string(to)
		}
		if c.Response().Committed {
			return nil, nil // the reply was already sent, because the order stops this server
		}
		return nil, c.Redirect(http.StatusSeeOther, withDone(back, a.name))
	}
}

// maxReason is the longest reason, in bytes.
const maxReason = 1000

// seeOther is the redirect target after an act, if not the page itself.
type seeOther string

// carry runs the handler. It writes an audit entry around it, unless the handler
// writes its own.
func (d *Dashboard) carry(ctx context.Context, c echo.Context, a act, why string) (reply any, err error) {
	if a.target == "" {
		return a.handle(ctx, c)
	}
	id := store.Text(c.Param("id"))
	err = d.server.Audited(ctx, a.name, a.target+"/"+id, why, func(ctx context.Context) (err error) {
		reply, err = a.handle(ctx, c)
		return err
	})
	return reply, err
}

// asProgram turns r into the request that a program would have sent.
func asProgram(r *http.Request, body []byte, query string, form url.Values) {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	q := url.Values{}
	for name := range strings.FieldsSeq(query) {
		if v := form.Get(name); v != "" {
			q.Set(name, v)
		}
	}
	r.URL.RawQuery = q.Encode()
}

// formBody makes JSON of a form's fields. It leaves out the empty ones.
func formBody(form url.Values, fields string) ([]byte, error) {
	body := map[string]any{}
	for field := range strings.FieldsSeq(fields) {
		name, kind, _ := strings.Cut(field, ":")
		v := strings.TrimSpace(form.Get(name))
		if v == "" {
			continue
		}
		var err error
		switch kind {
		case "int":
			body[name], err = strconv.Atoi(v)
		case "float":
			body[name], err = strconv.ParseFloat(v, 64)
		case "bool":
			body[name], err = strconv.ParseBool(v)
		default:
			body[name] = v
		}
		if err != nil {
			return nil, edge.Invalid(name + " must be a number")
		}
	}
	return json.Marshal(body)
}

func withDone(path, done string) string {
	u, err := url.Parse(path)
	if err != nil {
		return path
	}
	q := u.Query()
	if q.Has("done") {
		return path
	}
	q.Set("done", done)
	u.RawQuery = q.Encode()
	return u.RequestURI()
}

// detachedReply replaces a reply that the API sends before its order runs. It
// redirects the browser instead.
type detachedReply struct {
	http.ResponseWriter
	back string
	sent bool
}

// WriteHeader sends the redirect.
func (w *detachedReply) WriteHeader(int) {
	if w.sent {
		return
	}
	w.sent = true
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Location", w.back)
	w.ResponseWriter.WriteHeader(http.StatusSeeOther)
}

// Write drops the body, because it is meant for a program.
func (w *detachedReply) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusSeeOther)
	return len(p), nil
}

// Unwrap supports http.ResponseController.
func (w *detachedReply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// treeOrder returns the handler that gives an order to the tree. The form has its path and
// action as fields.
func (d *Dashboard) treeOrder(handle edge.Handler) edge.Handler {
	return func(ctx context.Context, c echo.Context) (any, error) {
		back := withDone(ownPath(c.Request().PostForm.Get("back"), "/tree"), "detached")
		w := c.Response()
		plain := w.Writer
		w.Writer = &detachedReply{ResponseWriter: plain, back: back}
		defer func() { w.Writer = plain }()
		if _, err := handle(ctx, c); err != nil {
			return nil, err
		}
		_, action, _ := strings.Cut("/"+c.Param("*"), "/")
		return seeOther(withDone("/tree", action[strings.LastIndexByte(action, '/')+1:])), nil
	}
}
