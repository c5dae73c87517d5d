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
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// act describes a form's action beside its call of an endpoint.
type act struct {
	name string // for the page after it
	done string // the message on that page
	// why requires a reason.
	why bool
	// to returns the page after it; nil is the page with the form.
	to func(out any) string
}

// acts lists the routes of forms.
func (d *Dashboard) acts() []edge.Route {
	orders := &d.server.Acts
	rebuilt := func(made any) string { return "/builds/" + made.(api.Retried).ID } // what RetryBuild returns
	return []edge.Route{
		perform(d, "/builds/:id/cancel", api.Reader, api.CancelBuild, orders.CancelBuild, act{name: "cancel", done: "The build is cancelled."}),
		perform(d, "/builds/:id/retry", api.Reader, api.RetryBuild, orders.RetryBuild, act{name: "retry", done: "The build is submitted again.", to: rebuilt}),
		perform(d, "/builds/:id/requeue", api.Operator, api.RequeueBuild, orders.RequeueBuild, act{name: "requeue", done: "The build is pending again.", why: true}),
		perform(d, "/builds/:id/priority", api.Reader, api.PatchBuild, orders.PatchBuild, act{name: "priority", done: "The priority is changed."}),
		perform(d, "/fleet/:id/drain", api.Reader, api.DrainWorker, orders.DrainWorker, act{name: "drain", done: "The worker gets no more builds; it finishes those it has.", why: true}),
		perform(d, "/fleet/:id/retry", api.Reader, api.RetryBuilds, orders.RetryBuilds, act{name: "retry-suspect", done: "The builds that failed there are submitted again.", why: true}),
		perform(d, "/fleet/:id/resume", api.Reader, api.ResumeWorker, orders.ResumeWorker, act{name: "resume", done: "The worker gets builds again.", why: true}),
		perform(d, "/fleet/:id/delete", api.Reader, api.DeleteWorker, orders.DeleteWorker, act{name: "delete", done: "The worker is deleted.", why: true}),
		d.bulkRoute(),
		d.route(post, "/tree/*", api.Operator, d.order),
		d.route(post, "/keys", api.Operator, d.makeKey),
		perform(d, "/keys/:name/revoke", api.Operator, api.RevokeKey, orders.RevokeKey, act{name: "revoke", done: "The key is revoked.", why: true}),
		perform(d, "/overview/acknowledge", api.Operator, api.AcknowledgeProblem, orders.AcknowledgeProblem, act{name: "acknowledge", done: "The problem is acknowledged.", why: true}),
		perform(d, "/overview/recall", api.Operator, api.RecallAcknowledgement, orders.RecallAcknowledgement, act{name: "recall", done: "The problem needs attention again."}),
		perform(d, "/notices/:id/redrive", api.Operator, api.RedriveNotices, orders.RedriveNotices, act{name: "notices-redrive", done: "The notices are sent again."}),
		perform(d, "/heijunka/limits", api.Operator, api.ChangeHeijunkaLimits, orders.ChangeHeijunkaLimits, act{name: "limits", done: "The limits are changed."}),
		perform(d, "/heijunka/pools/:name", api.Operator, api.ScalePool, orders.ScalePool, act{name: "scale", done: "The pool is changed."}),
		perform(d, "/heijunka/surge", api.Operator, api.SurgeHeijunka, orders.SurgeHeijunka, act{name: "surge", done: "Done."}),
		perform(d, "/heijunka/rebalance", api.Operator, api.RebalanceHeijunka, orders.RebalanceHeijunka, act{name: "rebalance", done: "Rebalanced."}),
		perform(d, "/system/timeouts", api.Operator, api.ChangeTimeouts, orders.ChangeTimeouts, act{name: "timeouts", done: "The time-outs are changed.", why: true}),
		perform(d, "/throttle/:id/pause", api.Operator, api.PauseQueue, orders.PauseQueue, act{name: "queue-pause", done: "The queue is paused.", why: true}),
		perform(d, "/throttle/:id/resume", api.Operator, api.ResumeQueue, orders.ResumeQueue, act{name: "queue-resume", done: "The queue is resumed.", why: true}),
		perform(d, "/throttle/:id/redrive", api.Operator, api.RedriveQueue, orders.RedriveQueue, act{name: "queue-redrive", done: "Everything that failed is tried again now.", why: true}),
		perform(d, "/throttle/:id/rate", api.Reader, api.SetRate, orders.SetRate, act{name: "rate", done: "The rate is changed.", why: true}),
		perform(d, "/deployments/:id/cancel", api.Reader, api.CancelDeployment, orders.CancelDeployment, act{name: "deployment-cancel", done: "The deployment is cancelled."}),
		perform(d, "/deployments/:id/pause", api.Reader, api.PauseDeployment, orders.PauseDeployment, act{name: "deployment-pause", done: "The deployment is paused."}),
		perform(d, "/deployments/:id/resume", api.Reader, api.ResumeDeployment, orders.ResumeDeployment, act{name: "deployment-resume", done: "The deployment is resumed."}),
		perform(d, "/deployments/:id/retry", api.Reader, api.RetryDeployment, orders.RetryDeployment, act{name: "deployment-retry", done: "Everything that failed is tried again."}),
	}
}

// orderTexts are the messages on the tree's page after an order.
func orderTexts() map[string]string {
	return map[string]string{
		"restart": "Restarted.", "terminate": "Terminated.", "start": "Started.",
		"waits":    "A retry of this build is waiting already: this one.",
		"detached": "The order is being carried out; it restarts what serves this page.",
	}
}

// perform returns the route of a form that does what an endpoint does.
func perform[In, Out any](d *Dashboard, path string, access api.Access, e api.Endpoint[In, Out], handle func(ctx context.Context, in In) (Out, error), a act) edge.Route {
	d.done[a.name] = a.done
	r := d.route(post, path, access, func(ctx context.Context, c echo.Context) (any, error) {
		fields := c.Request().PostForm // see serve
		if _, err := reasonOf(fields, a.why); err != nil {
			return nil, err
		}
		in, err := e.Read(formRequest{c, fields})
		if err != nil {
			return nil, err
		}
		out, err := handle(ctx, in)
		if waits := edge.FailureOf(err); err != nil && waits.Code == store.RetryWaiting { // as after a second click
			return nil, d.redirect(c, "/builds/"+waits.Details, "waits")
		}
		if err != nil {
			return nil, err
		}
		back := ownPath(fields.Get("back"), d.front)
		if a.to != nil {
			back = a.to(out)
		}
		return nil, d.redirect(c, back, a.name)
	})
	r.Service = e.Service
	r.Scope, r.Own = e.Scope, e.Own
	return r
}

// reasonOf returns the reason of an act.
func reasonOf(fields url.Values, required bool) (string, error) {
	why := strings.TrimSpace(store.Text(fields.Get("reason")))
	switch {
	case required && why == "":
		return "", edge.Invalid("Say why: a reason is required")
	case len(why) > api.MaxReason:
		return "", edge.Invalid("reason must have at most 1000 bytes")
	}
	return why, nil
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

func (f formRequest) QueryAll(name string) []string { return f.fields[name] }

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
		case reflect.Slice:
			body[name] = f.fields[name]
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

// doneCookie names the act whose result the next page shows. That page removes it, so that
// neither a reload nor a shared link shows the result again.
const doneCookie = "takt-done"

// redirect leads to the page after an act.
func (d *Dashboard) redirect(c echo.Context, path, done string) error {
	d.setDone(c, done)
	return c.Redirect(http.StatusSeeOther, path)
}

func (d *Dashboard) setDone(c echo.Context, done string) {
	cookie := d.sessions.cookie(c.Request(), done) //nolint:gosec // it has all attributes of a session's
	cookie.Name, cookie.MaxAge = doneCookie, min(cookie.MaxAge, 60)
	c.SetCookie(cookie)
}

// takeDone returns what the last act did, and removes it.
func (d *Dashboard) takeDone(c echo.Context) string {
	cookie, err := c.Cookie(doneCookie)
	if err != nil {
		return ""
	}
	d.setDone(c, "")
	return d.done[cookie.Value]
}

// wholeLimit is how long the page after an order waits for the whole tree.
const wholeLimit = 5 * time.Second

// order gives an order to the tree. The path has that of the node and the action. If the
// order stops this server, the browser is sent back before it is carried out.
func (d *Dashboard) order(ctx context.Context, c echo.Context) (any, error) {
	fields := c.Request().PostForm
	_, err := d.server.Order(ctx, formRequest{c, fields}, func(api.Plan) error {
		defer c.Response().Flush()
		c.Response().Header().Set("Connection", "close") // a browser would ask for the next page on one that is about to be closed
		return d.redirect(c, ownPath(fields.Get("back"), "/tree"), "detached")
	})
	if err != nil || c.Response().Committed {
		return nil, err
	}
	action := path.Base(c.Param("*"))
	// The order has waited for its own group only. What was suspended with it goes on later.
	wait, cancel := context.WithTimeout(ctx, wholeLimit)
	defer cancel()
	for action != "terminate" && wait.Err() == nil && starting(d.deps.Tree(false)) > 0 {
		select {
		case <-wait.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil, d.redirect(c, "/tree", action)
}
