package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// maxPooled is the largest buffer that is kept for the next reply, in bytes.
const maxPooled = 64 << 10

// marshal is json.Marshal without HTML's escapes: nothing here is a page.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// reply answers with v as compact JSON.
func (s *Server) reply(c echo.Context, status int, v any) error {
	b, err := marshal(v)
	if err != nil {
		return err
	}
	return s.replyBytes(c, status, b)
}

// replyBytes answers with b, which is JSON.
func (s *Server) replyBytes(c echo.Context, status int, b []byte) error {
	w := c.Response()
	h := w.Header()
	h["Content-Type"] = s.jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	w.WriteHeader(status)
	if c.Request().Method == http.MethodHead {
		return nil
	}
	_, _ = w.Write(b) // whoever left doesn't want it
	return nil
}

// readJSON reads the request's body into v. Without a body it reports false:
// many a client announces JSON and sends nothing.
func (s *Server) readJSON(c echo.Context, v any) (present bool, err error) {
	req := c.Request()
	if err := requireJSON(req.Header.Get("Content-Type")); err != nil {
		return false, err
	}
	if req.Body == nil || req.Body == http.NoBody {
		return false, nil
	}
	if req.ContentLength > s.cfg.MaxJSON {
		return false, store.NewError(store.TooLarge, "Request body too large")
	}
	data, err := io.ReadAll(req.Body)
	if _, ok := errors.AsType[*store.Error](err); ok {
		return false, err
	}
	if err != nil {
		return false, store.Wrap(store.InvalidArgument, "Request body is incomplete", err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return false, nil
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

// text makes a stranger's text fit for the database and for terminals' sake
// keeps everything else: PostgreSQL takes neither NUL nor invalid UTF-8.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
