package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
	"takt/store/tracing"
)

// The limits on a reply that is kept in memory, in bytes.
const (
	maxReply = 256 << 20 // a whole build log
	maxError = 1 << 20
)

// call describes one request before it is sent. It carries the admin key if its path
// begins with /admin, and the API key otherwise; with operator set, both.
type call struct {
	method string
	// path may have one placeholder, such as {build}, which id fills.
	path string
	id   string
	// public calls carry no key.
	public, operator bool
	query            url.Values
	header           http.Header
	// body, unless nil, is sent as JSON.
	body any
	// form, if it has an Open function, is sent instead of body, as a form with this
	// boundary.
	form     Content
	boundary string
	// extra is added to CallTimeout.
	extra time.Duration
}

// fill returns the path with its placeholder filled, and the placeholder's name.
func (c call) fill() (path, kind string) {
	before, rest, found := strings.Cut(c.path, "{")
	if !found {
		return c.path, ""
	}
	kind, after, _ := strings.Cut(rest, "}")
	return before + c.id + after, kind
}

func (c call) String() string {
	path, _ := c.fill()
	return c.method + " " + path
}

// query makes a query of names and values. It leaves out names without a value.
func query(pairs ...string) url.Values {
	q := url.Values{}
	for pair := range slices.Chunk(pairs, 2) {
		if name, value := pair[0], pair[1]; value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// positive returns n as a query's value, or "" unless n is positive.
func positive[N int | int64](n N) string {
	if n <= 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}

// flag returns "1" if set, else "".
func flag(set bool) string {
	if set {
		return "1"
	}
	return ""
}

// request makes the HTTP request of cl. It refuses an id that is not a valid path
// segment before anything is sent.
func (c *Client) request(ctx context.Context, cl call) (*http.Request, error) {
	path, kind := cl.fill()
	if kind != "" && !store.ValidID(cl.id) {
		return nil, store.NewError(store.InvalidArgument, fmt.Sprintf("%q is not a valid %s id", cl.id, kind))
	}
	unescaped, err := url.PathUnescape(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cl, err)
	}
	target := *c.base
	target.RawPath = target.EscapedPath() + path
	target.Path += unescaped
	target.RawQuery = cl.query.Encode()
	req, err := http.NewRequestWithContext(ctx, cl.method, target.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cl, err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	setIf(req.Header, tracing.Header, tracing.Traceparent(ctx))
	maps.Copy(req.Header, cl.header)
	switch {
	case cl.public:
	case strings.HasPrefix(path, "/admin/"):
		setIf(req.Header, api.HeaderAdminKey, c.cfg.AdminKey)
	default:
		setIf(req.Header, api.HeaderAPIKey, c.cfg.APIKey)
		if cl.operator {
			setIf(req.Header, api.HeaderAdminKey, c.cfg.AdminKey)
		}
	}
	if cl.body != nil {
		body, err := json.Marshal(cl.body)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cl, err)
		}
		cl.form = plain(body)
		req.Header.Set("Content-Type", "application/json")
	} else if cl.form.Open != nil {
		req.Header.Set("Content-Type", "multipart/form-data; boundary="+cl.boundary)
	}
	if cl.form.Open != nil {
		req.GetBody, req.ContentLength = cl.form.Open, cl.form.Size
		req.Body, err = cl.form.Open()
	}
	return req, err
}

func setIf(h http.Header, name, value string) {
	if value != "" {
		h.Set(name, value)
	}
}

// send makes a request and returns the reply, whatever its status. outer is the
// caller's context, inner the call's own. The caller must close the reply's body.
func (c *Client) send(outer, inner context.Context, cl call) (*http.Response, error) {
	req, err := c.request(inner, cl)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, noReply(outer, inner, cl, err)
	}
	return resp, nil
}

// ask makes a call without a file and returns the reply.
func ask[T any](ctx context.Context, c *Client, cl call) (out T, err error) {
	inner, cancel := context.WithTimeoutCause(ctx, c.cfg.CallTimeout+cl.extra, errTimeout)
	defer cancel()
	resp, err := c.send(ctx, inner, cl)
	if err != nil {
		return out, err
	}
	err = decode(ctx, inner, cl, resp, &out)
	return out, err
}

// decode reads a reply into memory and closes it. out may be a *string, which
// receives the unparsed body.
func decode(outer, inner context.Context, cl call, resp *http.Response, out any) error {
	defer resp.Body.Close()
	defer drain(resp.Body)
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return refused(cl, resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return noReply(outer, inner, cl, err)
	}
	if len(body) > maxReply {
		return unexpected(cl, resp, errors.New("reply too large"))
	}
	switch out := out.(type) {
	case *nothing:
		return nil
	case *string:
		*out = string(body)
		return nil
	default:
		if err := json.Unmarshal(body, out); err != nil {
			return unexpected(cl, resp, err)
		}
		return nil
	}
}

// nothing is the reply type of a call whose reply is ignored.
type nothing struct{}

// drain reads a short rest of body, because the connection can then be used again.
func drain(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
}

// plain returns b as Content without a digest.
func plain(b []byte) Content {
	return Content{
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil },
		Size: int64(len(b)),
	}
}
