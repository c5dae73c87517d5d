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
	"takt/store"
)

// The most that is read of a reply that is kept in memory, in bytes.
const (
	maxReply = 256 << 20 // a whole build log
	maxError = 1 << 20
)

// access says which key a call carries.
type access uint8

const (
	withAPIKey access = iota
	withAdminKey
	public
)

// call is one request in the making.
type call struct {
	method string
	path   string
	query  url.Values
	header http.Header
	access access
	// extra is added to CallTimeout.
	extra time.Duration
}

func (c call) String() string { return c.method + " " + c.path }

// request makes the HTTP request of cl, without a body.
func (c *Client) request(ctx context.Context, cl call) (*http.Request, error) {
	target := *c.base
	target.Path += cl.path
	target.RawPath = ""
	target.RawQuery = cl.query.Encode()
	req, err := http.NewRequestWithContext(ctx, cl.method, target.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cl, err)
	}
	maps.Copy(req.Header, cl.header)
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	switch cl.access {
	case withAPIKey:
		if c.cfg.APIKey != "" {
			req.Header.Set(api.HeaderAPIKey, c.cfg.APIKey)
		}
	case withAdminKey:
		if c.cfg.AdminKey != "" {
			req.Header.Set(api.HeaderAdminKey, c.cfg.AdminKey)
		}
	case public:
	}
	return req, nil
}

// json sends in (nil: no body) and reads the reply into out (nil: discarded).
func (c *Client) json(ctx context.Context, cl call, in, out any) error {
	inner, cancel := context.WithTimeoutCause(ctx, c.cfg.CallTimeout+cl.extra, errTimeout)
	defer cancel()
	req, err := c.request(inner, cl)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s: %w", cl, err)
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		req.ContentLength = int64(len(body))
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return noReply(ctx, inner, cl, err)
	}
	defer resp.Body.Close()
	defer drain(resp.Body)
	return c.decode(ctx, inner, cl, resp, out)
}

// decode reads a reply that is kept in memory. outer is the caller's context,
// inner the call's own.
func (c *Client) decode(outer, inner context.Context, cl call, resp *http.Response, out any) error {
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
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return unexpected(cl, resp, err)
	}
	return nil
}

// drain lets the connection be used again, unless much is left to read.
func drain(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
}

// validBuild refuses an id that could not be a path segment before it is sent.
func validBuild(id string) error {
	if store.ValidID(id) {
		return nil
	}
	return store.NewError(store.InvalidArgument, fmt.Sprintf("%q is not a valid build id", id))
}
