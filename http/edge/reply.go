package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// Marshal is json.Marshal without HTML escapes, because no reply is embedded in a page.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Reply is a reply with its own status. If Body is nil, it has no body.
type Reply struct {
	Status int `json:"status"`
	Body   any `json:"body"`
}

// Answer calls a handler and sends its result as compact JSON. A result of nil means that the
// handler has replied itself. [Reply], [List] and [json.RawMessage] (sent as it is) are
// treated specially.
func (s *Server) Answer(ctx context.Context, c echo.Context, handle Handler) error {
	v, err := handle(s.WithCaller(ctx, c), c)
	if err != nil || v == nil {
		return err
	}
	if l, ok := v.(List); ok {
		return s.replyList(ctx, c, l)
	}
	return s.Reply(c, v)
}

// listPage is how many rows of a list are read at once, and maxList how many one reply has.
const (
	listPage = 200
	maxList  = 10_000
)

// List is a reply that is read and sent piece by piece, so that a long one needs little
// memory.
type List struct {
	// next returns the JSON of the next elements, and whether there may be more.
	next func(ctx context.Context) (elements [][]byte, more bool, err error)
	// following is the cursor of the next page, "" if this one is the last. It is set by the
	// first call of next.
	following *store.Cursor
	member    string // the member of an object that has the list; "" for a bare array
	total     bool   // the object also has the list's length
}

// ListOf returns a page of a list: up to limit rows after cursor. A limit of 0 means maxList,
// which is also the maximum. read returns a part of the list, and the cursor after its last
// row if more follow.
func ListOf[A, B any](limit int, cursor string, read func(ctx context.Context, p store.Page) ([]A, store.Cursor, error), wire func(A) B) List {
	if limit == 0 {
		limit = maxList
	}
	limit = min(limit, maxList)
	at := store.Page{After: store.Cursor(cursor)}
	var following store.Cursor
	return List{following: &following, next: func(ctx context.Context) (elements [][]byte, more bool, err error) {
		first := at.Limit == 0
		at.Limit = min(limit, listPage)
		rows, rest, err := read(ctx, at)
		if limit -= at.Limit; err == nil && first {
			if following = rest; rest != "" && limit > 0 {
				// The header is sent before the rest is read, so find the end of the page.
				_, following, err = read(ctx, store.Page{After: rest, Skip: limit - 1, Limit: 1})
				at.Until = following
			}
		}
		for i := 0; i < len(rows) && err == nil; i++ {
			var raw []byte
			raw, err = Marshal(wire(rows[i]))
			elements = append(elements, raw)
		}
		at.After = rest
		if at.Until != "" {
			limit = listPage // Until ends the page, even if more rows match by now
		}
		return elements, rest != "" && limit > 0, err
	}}
}

// In returns l as the member name of an object, followed by its length if total is set.
func (l List) In(name string, total bool) List {
	l.member, l.total = name, total
	return l
}

// around returns the JSON before and after the list's n elements.
func (l List) around(n int) (head, tail string) {
	switch {
	case l.member == "":
		return "[", "]"
	case l.total:
		tail = `,"total":` + strconv.Itoa(n)
	}
	return `{"` + l.member + `":[`, "]" + tail + "}"
}

// replyList sends l. If it is short, it has a Content-Length. If a later part can't be read,
// the connection is aborted, so that no client takes a part of the list for all of it.
func (s *Server) replyList(ctx context.Context, c echo.Context, l List) error {
	head, _ := l.around(0)
	b, n, w := []byte(head), 0, c.Response()
	for more := true; more; {
		var elements [][]byte
		var err error
		if elements, more, err = l.next(ctx); err != nil {
			return err
		}
		if *l.following != "" && !w.Committed {
			setNext(c, *l.following)
		}
		for _, e := range elements {
			if n++; n > 1 {
				b = append(b, ',')
			}
			b = append(b, e...)
		}
		if !more {
			_, tail := l.around(n)
			b = append(b, tail...)
		}
		switch {
		case w.Committed:
		case !more:
			s.ReplyBytes(c, http.StatusOK, s.jsonType, b)
			return nil
		default:
			w.Header()["Content-Type"] = s.jsonType
			w.WriteHeader(http.StatusOK)
		}
		if err := writePieces(w, b, false); err != nil {
			return http.ErrAbortHandler // the client has left or does not read
		}
		b = b[:0]
	}
	return nil
}

// setNext sets the header Link (RFC 8288) to the address of the next page.
func setNext(c echo.Context, following store.Cursor) {
	q := maps.Clone(c.QueryParams())
	q.Set("cursor", string(following))
	c.Response().Header().Set("Link", "<"+c.Request().URL.EscapedPath()+"?"+q.Encode()+`>; rel="next"`)
}

// Reply sends v as compact JSON; see [Server.Answer].
func (s *Server) Reply(c echo.Context, v any) error {
	status := http.StatusOK
	if a, ok := v.(Reply); ok {
		if status, v = a.Status, a.Body; v == nil {
			return c.NoContent(status)
		}
	}
	raw, ok := v.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = Marshal(v); err != nil {
			return err
		}
	}
	s.ReplyBytes(c, status, s.jsonType, raw)
	return nil
}

// ReplyBytes replies with b.
func (s *Server) ReplyBytes(c echo.Context, status int, contentType []string, b []byte) {
	w := c.Response()
	h := w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	w.WriteHeader(status)
	if c.Request().Method == http.MethodHead {
		return
	}
	_ = writePieces(w, b, true) // fails if the client has left or does not read
}

// writePieces writes b and gives the client time for each piece; for the first one WriteHeader has
// just done so if moved is true.
func writePieces(w *echo.Response, b []byte, moved bool) error {
	for len(b) > 0 {
		piece := b[:min(len(b), replyPiece)]
		if !moved {
			moveWriteDeadline(w.Writer)
		}
		moved = false
		if _, err := w.Write(piece); err != nil {
			return err
		}
		b = b[len(piece):]
	}
	return nil
}

const (
	// replyTimeout is how long a client may take to read a small reply, or replyPiece
	// bytes of a long one. Then its connection is cut off.
	replyTimeout = 5 * time.Second
	replyPiece   = 64 << 10
)

// moveWriteDeadline gives a client replyTimeout to read what is written next. Files and
// streams set their own deadlines.
func moveWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(replyTimeout)) // fails on a dead connection only
}

// Each applies f to every element of list. For an empty list it returns [], not null.
func Each[A, B any](list []A, f func(A) B) []B {
	out := make([]B, len(list))
	for i, v := range list {
		out[i] = f(v)
	}
	return out
}

// ReadBody returns the request's body, nil if there is none. Further calls return the same.
// Errors: TooLarge beyond the limit of the route, InvalidArgument if the body is incomplete.
func ReadBody(c echo.Context) ([]byte, error) {
	req := c.Request()
	b := Watched(req)
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		return nil, nil
	case b == nil:
		return readAll(req.Body)
	case b.whole:
	case req.ContentLength > b.max:
		b.whole, b.failed = true, errTooLarge()
	default:
		b.whole = true
		b.data, b.failed = readAll(b)
	}
	return b.data, b.failed
}

func readAll(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(body)
	if _, ok := errors.AsType[*store.Error](err); ok {
		return nil, err
	}
	if err != nil {
		return nil, store.Wrap(store.InvalidArgument, "Request body is incomplete", err)
	}
	return data, nil
}

func errTooLarge() error { return store.NewError(store.TooLarge, "Request body too large") }

// ReadJSON decodes the request's body into v. It returns false if there is no body, because
// many clients declare JSON but send nothing. Errors: those of ReadBody, InvalidArgument,
// UnsupportedMedia.
func ReadJSON(c echo.Context, v any) (present bool, err error) {
	if err := requireJSON(c.Request().Header.Get("Content-Type")); err != nil {
		return false, err
	}
	data, err := ReadBody(c)
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		var mismatch *json.UnmarshalTypeError
		if errors.As(err, &mismatch) && mismatch.Field != "" {
			return false, Invalid("Invalid body: wrong type of " + mismatch.Field)
		}
		return false, Invalid("Invalid JSON body")
	}
	return true, nil
}

// requireJSON returns an error for a content type other than JSON; none is accepted.
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
