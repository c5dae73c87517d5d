package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// act describes what a form does beside calling an endpoint.
type act struct {
	name string // key of its text in doneTexts, and its name in the audit
	// target is the prefix of the audit entry's target, before the id; "" if the
	// handler writes the audit itself.
	target string
	// why requires a reason. Handlers that write the audit check it themselves.
	why bool
}

// acts lists the routes of forms.
func (d *Dashboard) acts() []edge.Route {
	rebuilt := func(made api.Retried) string { return "/builds/" + made.ID }
	return []edge.Route{
		perform(d, "/builds/:id/cancel", api.Reader, api.CancelBuild, act{name: "cancel", target: "build"}),
		performTo(d, "/builds/:id/retry", api.Reader, api.RetryBuild, act{name: "retry", target: "build"}, rebuilt),
		perform(d, "/builds/:id/requeue", api.Operator, api.RequeueBuild, act{name: "requeue", why: true}),
		perform(d, "/builds/:id/priority", api.Reader, api.PatchBuild, act{name: "priority", target: "build"}),
		perform(d, "/fleet/:id/drain", api.Reader, api.DrainWorker, act{name: "drain", target: "worker", why: true}),
		perform(d, "/fleet/:id/resume", api.Reader, api.ResumeWorker, act{name: "resume", target: "worker", why: true}),
		perform(d, "/fleet/:id/delete", api.Reader, api.DeleteWorker, act{name: "delete", target: "worker", why: true}),
		d.form("/tree/*", api.Operator, d.order),
		perform(d, "/heijunka/limits", api.Operator, api.ChangeHeijunkaLimits, act{name: "limits"}),
		perform(d, "/heijunka/pools/:name", api.Operator, api.ScalePool, act{name: "scale"}),
		perform(d, "/heijunka/surge", api.Operator, api.SurgeHeijunka, act{name: "surge"}),
		perform(d, "/heijunka/rebalance", api.Operator, api.RebalanceHeijunka, act{name: "rebalance"}),
		perform(d, "/throttle/:id/pause", api.Operator, api.PauseQueue, act{name: "queue-pause", why: true}),
		perform(d, "/throttle/:id/resume", api.Operator, api.ResumeQueue, act{name: "queue-resume", why: true}),
		perform(d, "/throttle/:id/redrive", api.Operator, api.RedriveQueue, act{name: "queue-redrive", why: true}),
		perform(d, "/throttle/:id/rate", api.Reader, api.SetRate, act{name: "rate", target: "throttle", why: true}),
		perform(d, "/deployments/:id/cancel", api.Reader, api.CancelDeployment, act{name: "deployment-cancel"}),
		perform(d, "/deployments/:id/pause", api.Reader, api.PauseDeployment, act{name: "deployment-pause"}),
		perform(d, "/deployments/:id/resume", api.Reader, api.ResumeDeployment, act{name: "deployment-resume"}),
		perform(d, "/deployments/:id/retry", api.Reader, api.RetryDeployment, act{name: "deployment-retry"}),
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

// form returns the route of a form.
func (d *Dashboard) form(path string, access api.Access, handle edge.Handler) edge.Route {
	return edge.Route{Method: post, Path: path, Access: access, Class: api.Ops, Body: maxForm, Serve: d.guarded, Handle: handle}
}

// perform returns the route of a form that calls an endpoint. The browser then goes back to
// the page.
func perform[In, Out any](d *Dashboard, path string, access api.Access, e api.Endpoint[In, Out], a act) edge.Route {
	return performTo(d, path, access, e, a, nil)
}

// performTo is perform for an act after which the browser goes to the page that to returns.
func performTo[In, Out any](d *Dashboard, path string, access api.Access, e api.Endpoint[In, Out], a act, to func(out Out) string) edge.Route {
	return d.form(path, access, func(ctx context.Context, c echo.Context) (any, error) {
		fields := c.Request().PostForm // see guarded
		why := strings.TrimSpace(store.Text(fields.Get("reason")))
		switch {
		case a.why && why == "":
			return nil, edge.Invalid("Say why: a reason is required")
		case len(why) > api.MaxReason:
			return nil, edge.Invalid("reason must have at most 1000 bytes")
		}
		in, err := e.Read(formRequest{c, fields})
		if err != nil {
			return nil, err
		}
		var out Out
		call := func(ctx context.Context) (err error) {
			out, err = edge.Invoke(ctx, d.server.Server, e, in)
			return err
		}
		if a.target == "" {
			err = call(ctx)
		} else {
			err = d.server.Audited(ctx, a.name, a.target+"/"+store.Text(c.Param("id")), why, call)
		}
		if err != nil {
			return nil, err
		}
		back := ownPath(fields.Get("back"), d.front)
		if to != nil {
			back = to(out)
		}
		return nil, c.Redirect(http.StatusSeeOther, withDone(back, a.name))
	})
}

// formRequest is a form that an endpoint's input is read from: parameters of the query, and
// members of the body, are its fields of the same name.
type formRequest struct {
	c      echo.Context
	fields url.Values
}

func (f formRequest) Path(name string) string  { return f.c.Param(name) }
func (f formRequest) Query(name string) string { return f.fields.Get(name) }
func (f formRequest) Header(string) string     { return "" }

// JSON sets the members of the struct v from the fields that are not empty.
func (f formRequest) JSON(v any, _ bool) error {
	body := map[string]any{}
	for _, member := range reflect.VisibleFields(reflect.TypeOf(v).Elem()) {
		name, _, _ := strings.Cut(member.Tag.Get("json"), ",")
		sent := strings.TrimSpace(f.fields.Get(name))
		if sent == "" {
			continue
		}
		kind := member.Type.Kind()
		if kind == reflect.Pointer {
			kind = member.Type.Elem().Kind()
		}
		var err error
		switch kind {
		case reflect.Int, reflect.Int64:
			body[name], err = strconv.Atoi(sent)
		case reflect.Float64:
			body[name], err = strconv.ParseFloat(sent, 64)
		case reflect.Bool:
			body[name], err = strconv.ParseBool(sent)
		default:
			body[name] = sent
		}
		if err != nil {
			return edge.Invalid(name + " must be a number")
		}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return edge.Invalid("Not a number") // infinity
	}
	return json.Unmarshal(raw, v)
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

// order gives an order to the tree. The path has that of the node and the action. If the
// order stops this server, the browser is sent back before it is carried out.
func (d *Dashboard) order(ctx context.Context, c echo.Context) (any, error) {
	fields := c.Request().PostForm
	_, err := d.server.Order(ctx, formRequest{c, fields}, func(api.Plan) error {
		defer c.Response().Flush()
		return c.Redirect(http.StatusSeeOther, withDone(ownPath(fields.Get("back"), "/tree"), "detached"))
	})
	if err != nil || c.Response().Committed {
		return nil, err
	}
	return nil, c.Redirect(http.StatusSeeOther, withDone("/tree", path.Base(c.Param("*"))))
}
