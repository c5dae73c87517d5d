package http

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
func (d *dashboard) perform(a act) edge.Handler {
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

// seeOther is the redirect target after an act, if not the page itself.
type seeOther string

// carry runs the handler. It writes an audit entry around it, unless the handler
// writes its own.
func (d *dashboard) carry(ctx context.Context, c echo.Context, a act, why string) (reply any, err error) {
	if a.target == "" {
		return a.handle(ctx, c)
	}
	id := store.Text(c.Param("id"))
	what := entry{a.name, a.target + "/" + id, why, map[string]any{}}
	err = d.audit.do(ctx, what, func(ctx context.Context) (err error) {
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

// treeOrder gives an order to the tree. The form has its path and action as fields.
func (d *dashboard) treeOrder(ctx context.Context, c echo.Context) (any, error) {
	back := withDone(ownPath(c.Request().PostForm.Get("back"), "/tree"), "detached")
	w := c.Response()
	plain := w.Writer
	w.Writer = &detachedReply{ResponseWriter: plain, back: back}
	defer func() { w.Writer = plain }()
	if _, err := d.orders.order(ctx, c); err != nil {
		return nil, err
	}
	_, action, _ := strings.Cut("/"+c.Param("*"), "/")
	return seeOther(withDone("/tree", action[strings.LastIndexByte(action, '/')+1:])), nil
}
