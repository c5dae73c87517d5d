package client

import (
	"context"
	"io"
	"net/http"
)

// maxMetrics is the most that is read of the metrics, in bytes.
const maxMetrics = 16 << 20

// Metrics returns the controller's figures in Prometheus' text format. Safe to
// repeat.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	cl := call{method: http.MethodGet, path: "/metrics", access: public}
	inner, cancel := context.WithTimeoutCause(ctx, c.cfg.CallTimeout, errTimeout)
	defer cancel()
	req, err := c.request(inner, cl)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", noReply(ctx, inner, cl, err)
	}
	defer resp.Body.Close()
	defer drain(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", refused(cl, resp)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	if err != nil {
		return "", noReply(ctx, inner, cl, err)
	}
	return string(text), nil
}
