package http_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func decode[T any](t *testing.T, r reply) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(r.body), &v), r.body)
	return v
}

// requireShape checks that a reply has the members of the wire sample that the
// client is tested with, each of the same kind or null.
func requireShape(t *testing.T, sample string, r reply) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "wire", sample+".json"))
	require.NoError(t, err)
	var want, got any
	require.NoError(t, json.Unmarshal(raw, &want))
	require.NoError(t, json.Unmarshal([]byte(r.body), &got), r.body)
	sameShape(t, sample, want, got)
}

func sameShape(t *testing.T, at string, want, got any) {
	t.Helper()
	if want == nil || got == nil {
		return
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		require.True(t, ok, at)
		require.ElementsMatch(t, slices.Collect(maps.Keys(w)), slices.Collect(maps.Keys(g)), at)
		for k := range w {
			sameShape(t, at+"."+k, w[k], g[k])
		}
	case []any:
		g, ok := got.([]any)
		require.True(t, ok, at)
		for i := range g {
			sameShape(t, at+"[]", w[0], g[i])
		}
	default:
		require.IsType(t, want, got, at)
	}
}

// requireBody checks a reply to the byte: old clients search JSON as text.
func requireBody(t *testing.T, want string, r reply) {
	t.Helper()
	require.Equal(t, want, r.body)
}

type reply struct {
	status int
	header http.Header
	body   string
	closes bool // the connection, after it
}

func send(t *testing.T, c *http.Client, method, url string, header map[string]string, body io.Reader) reply {
	t.Helper()
	r, err := try(t.Context(), c, method, url, header, body)
	require.NoError(t, err)
	return r
}

// try is send for goroutines, in which a test must not end.
func try(ctx context.Context, c *http.Client, method, url string, header map[string]string, body io.Reader) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return reply{}, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := c.Do(req)
	if err != nil {
		return reply{}, err
	}
	return readReply(resp)
}

func readReply(resp *http.Response) (reply, error) {
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(data), resp.Close}, err
}

// begin is send in the background. What went wrong is a reply without status.
func begin(t *testing.T, c *http.Client, method, url string, header map[string]string, body io.Reader) <-chan reply {
	t.Helper()
	answered := make(chan reply, 1)
	ctx := t.Context()
	go func() {
		r, err := try(ctx, c, method, url, header, body)
		if err != nil {
			r = reply{body: err.Error()}
		}
		answered <- r
	}()
	return answered
}
