package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// marshal is json.Marshal without HTML escapes, because no reply is embedded in a page.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// answer is a reply with its own status; with body nil it has no body.
type answer struct {
	status int
	body   any
}

// answer runs a handler and sends its result as compact JSON. nil means that the handler
// has replied itself; [json.RawMessage] is sent as it is.
func (s *shared) answer(ctx context.Context, c echo.Context, handle handler) error {
	v, err := handle(ctx, c)
	if err != nil || v == nil {
		return err
	}
	return s.reply(c, v)
}

func (s *shared) reply(c echo.Context, v any) error {
	status := http.StatusOK
	if a, ok := v.(answer); ok {
		if status, v = a.status, a.body; v == nil {
			return c.NoContent(status)
		}
	}
	raw, ok := v.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = marshal(v); err != nil {
			return err
		}
	}
	s.replyBytes(c, status, s.jsonType, raw)
	return nil
}

// replyBytes answers with b.
func (s *shared) replyBytes(c echo.Context, status int, contentType []string, b []byte) {
	w := c.Response()
	h := w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	w.WriteHeader(status)
	if c.Request().Method == http.MethodHead {
		return
	}
	for len(b) > replyPiece {
		if _, err := w.Write(b[:replyPiece]); err != nil { // the client has left or does not read
			return
		}
		b = b[replyPiece:]
		moveWriteDeadline(http.NewResponseController(w.Writer))
	}
	_, _ = w.Write(b)
}

const (
	// replyTimeout is how long a client may take to read a small reply, or replyPiece
	// bytes of a long one. Then its connection is cut off.
	replyTimeout = 5 * time.Second
	replyPiece   = 64 << 10
)

// moveWriteDeadline gives a client replyTimeout to read what is written next. Files and
// streams set their own deadlines.
func moveWriteDeadline(conn *http.ResponseController) {
	_ = conn.SetWriteDeadline(time.Now().Add(replyTimeout)) // fails on a dead connection only
}

// each applies f to every element of list. For an empty list it returns [], not null.
func each[A, B any](list []A, f func(A) B) []B {
	out := make([]B, len(list))
	for i, v := range list {
		out[i] = f(v)
	}
	return out
}

// readBody reads the request's body, nil if there is none. It stops at the limit of its
// route.
func readBody(c echo.Context) ([]byte, error) {
	req := c.Request()
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	if b := watched(req); b != nil && req.ContentLength > b.max {
		return nil, errTooLarge()
	}
	data, err := io.ReadAll(req.Body)
	if _, ok := errors.AsType[*store.Error](err); ok {
		return nil, err
	}
	if err != nil {
		return nil, store.Wrap(store.InvalidArgument, "Request body is incomplete", err)
	}
	return data, nil
}

func errTooLarge() error { return store.NewError(store.TooLarge, "Request body too large") }

// readJSON reads the request's body into v. It reports false if there is no body, because
// many clients declare JSON and send nothing.
func readJSON(c echo.Context, v any) (present bool, err error) {
	if err := requireJSON(c.Request().Header.Get("Content-Type")); err != nil {
		return false, err
	}
	data, err := readBody(c)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		var mismatch *json.UnmarshalTypeError
		if errors.As(err, &mismatch) && mismatch.Field != "" {
			return false, invalid("Invalid body: wrong type of " + mismatch.Field)
		}
		return false, invalid("Invalid JSON body")
	}
	return true, nil
}

// requireJSON refuses forms and other content that is not JSON.
func requireJSON(contentType string) error {
	if contentType == "" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(contentType)
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return store.NewError(store.UnsupportedMedia, "Content must be application/json")
}
