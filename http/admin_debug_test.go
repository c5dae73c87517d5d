package http_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
)

func TestDebugShowsTheInside(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{Debug: func(context.Context) api.Debug {
		none := map[string]string{}
		return api.Debug{
			Build: api.BuildInfo{Version: "v1", Settings: none, Modules: none}, Settings: none,
			Log: []string{"{}\n"}, Supervision: []json.RawMessage{}, DatabaseError: "away",
		}
	}})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	key := map[string]string{"X-Admin-Key": adminKey}
	got := decode[api.Debug](t, send(t, c, "GET", url+"/admin/debug", key, nil))
	require.Equal(t, "v1", got.Build.Version)

	pprof := func(what string) reply { return send(t, c, "GET", url+"/admin/debug/pprof/"+what, key, nil) }
	for what, text := range map[string]string{"profile?seconds=1": "cpu", "heap": "inuse_space"} {
		r := pprof(what)
		require.Equal(t, 200, r.status, r.body)
		require.Equal(t, "application/octet-stream", r.header.Get("Content-Type"))
		zr, err := gzip.NewReader(bytes.NewReader([]byte(r.body)))
		require.NoError(t, err)
		raw, err := io.ReadAll(zr)
		require.NoError(t, err)
		require.Contains(t, string(raw), text)
	}
	require.Contains(t, pprof("trace?seconds=1").body, "go 1.")
	r := pprof("goroutine?debug=2")
	require.Contains(t, r.body, "goroutine 1 [")
	require.Equal(t, "text/plain; charset=utf-8", r.header.Get("Content-Type"))
	for what, status := range map[string]int{"nothing": 404, "profile?seconds=61": 400, "profile?seconds=0": 400, "heap?debug=3": 400} {
		require.Equal(t, status, pprof(what).status, what)
	}

	// One at a time, and none is left behind by a client that leaves.
	ctx, leave := context.WithCancelCause(t.Context())
	gone := make(chan error, 1)
	go func() {
		r, err := reply{status: 409}, error(nil)
		for r.status == 409 { // the other was first
			r, err = try(ctx, c, "GET", url+"/admin/debug/pprof/trace?seconds=60", key, nil)
		}
		gone <- err
	}()
	require.Eventually(t, func() bool { return pprof("heap").status == 409 }, waitFor, tick)
	leave(context.Canceled)
	require.Error(t, <-gone)
	require.Eventually(t, func() bool { return pprof("heap").status == 200 }, waitFor, tick)
}
