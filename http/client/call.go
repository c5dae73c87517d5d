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
	"time"

	"takt/http/api"
	"takt/store/tracing"
)

// The limits on a reply that is kept in memory, in bytes.
const (
	maxReply = 256 << 20 // a whole build log
	maxError = 1 << 20
)

// call is one request before it is sent.
type call struct {
	api.Call
	access api.Access
	// operator sends the admin key beside the API key.
	operator bool
	header   http.Header
	// form, if it has an Open function, is sent instead of the body, as a form with this
	// boundary.
	form     Content
	boundary string
	// extra is added to CallTimeout.
	extra time.Duration
	// next, if it is not nil, receives the cursor of a list's next page.
	next *string
	// err is why the call can't be made.
	err error
}

// of returns a call of an endpoint. An id that is not a valid path segment is refused
// before anything is sent.
func of[In, Out any](e api.Endpoint[In, Out], in In) call {
	c, err := e.Call(in)
	cl := call{Call: c, access: e.Access, operator: e.AdminToo, header: http.Header{}, err: err}
	for name, values := range c.Header {
		cl.header[http.CanonicalHeaderKey(name)] = values
	}
	return cl
}

// Call calls an endpoint that has no file, form or stream. Whether it is safe to repeat
// depends on the endpoint.
func Call[In, Out any](ctx context.Context, c *Client, e api.Endpoint[In, Out], in In) (Out, error) {
	return ask[Out](ctx, c, of(e, in))
}

func (c call) String() string { return c.Method + " " + c.Path }

// request makes the HTTP request of cl.
func (c *Client) request(ctx context.Context, cl call) (*http.Request, error) {
	if cl.err != nil {
		return nil, cl.err
	}
	unescaped, err := url.PathUnescape(cl.Path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cl, err)
	}
	target := *c.base
	target.RawPath = target.EscapedPath() + cl.Path
	target.Path += unescaped
	target.RawQuery = url.Values(cl.Query).Encode()
	req, err := http.NewRequestWithContext(ctx, cl.Method, target.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cl, err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	setIf(req.Header, tracing.Header, tracing.Traceparent(ctx))
	maps.Copy(req.Header, cl.header)
	switch cl.access {
	case api.Public:
	case api.AdminKey:
		setIf(req.Header, api.HeaderAdminKey, c.cfg.AdminKey)
	default:
		setIf(req.Header, api.HeaderAPIKey, c.cfg.APIKey)
		if cl.operator {
			setIf(req.Header, api.HeaderAdminKey, c.cfg.AdminKey)
		}
	}
	if cl.Body != nil {
		body, err := json.Marshal(cl.Body)
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
	if ignored := resp.Header.Get(api.HeaderIgnored); ignored != "" {
		_ = resp.Body.Close()
		return out, unknownTo(ignored)
	}
	if cl.next != nil {
		*cl.next = nextCursor(resp.Header)
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
	case *api.None:
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
