package http_test

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

func uploadParts(build, worker, success string) (id, who, ok part) {
	return part{name: "build_id", content: build}, part{name: "worker_id", content: worker}, part{name: "success", content: success}
}

func TestUploadFileFirstOrLast(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file := part{"result", "anything.bin", "the app"}
	for name, arrange := range map[string]func(id, who, ok part) []part{
		"last":   func(id, who, ok part) []part { return []part{id, who, ok, file} },
		"first":  func(id, who, ok part) []part { return []part{file, id, who, ok} },
		"middle": func(id, who, ok part) []part { return []part{id, file, who, ok, {name: "extra", content: "x"}} },
	} {
		s, w := b.assigned(part{name: "labels", content: `{"cache":"app"}`})
		path := "/api/workers/upload"
		if name == "first" {
			path = "/api/workers/result"
		}
		r := b.form(path, key(), arrange(uploadParts(s.ID, w.ID, "true"))...)
		require.Equal(t, 200, r.status, "%s: %s", name, r.body)
		requireShape(t, "uploaded", r)
		requireBody(t, `{"success":true,"status":"success","message":"Result uploaded successfully"}`, r)
		require.Equal(t, "completed", b.status(s.ID).Status)
		stored, err := os.ReadFile(filepath.Join(b.dir, "builds", s.ID, "result.ipa"))
		require.NoError(t, err)
		require.Equal(t, "the app", string(stored))
		require.Contains(t, b.messages(s.ID), "Build completed successfully")
		require.Contains(t, b.queue.freed, w.ID)
		require.Contains(t, b.queue.warm, w.ID+" app")
	}
	require.Empty(t, b.temporaries())
}

func TestUploadOfAFailure(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, message := range []string{"", "xcodebuild failed\x00\xff", "xcodebuild failed" + strings.Repeat(".", 1<<20)} {
		s, w := b.assigned()
		id, who, ok := uploadParts(s.ID, w.ID, "false")
		r := b.form("/api/workers/upload", key(), id, who, ok, part{name: "error_message", content: message}, part{"result", "x", "unwanted"})
		require.Equal(t, 200, r.status, r.body)
		requireBody(t, `{"success":true,"status":"failed","message":"Build marked as failed"}`, r)
		st := b.status(s.ID)
		require.Equal(t, "failed", st.Status)
		if message == "" {
			require.Equal(t, "Build failed", *st.ErrorMessage)
		} else {
			require.True(t, strings.HasPrefix(*st.ErrorMessage, "xcodebuild failed"))
		}
		require.Equal(t, 400, b.send("GET", "/api/builds/"+s.ID+"/download", key(), "").status)
	}
	require.Empty(t, b.temporaries())
}

func TestUploadRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.MaxResult = 100 })
	s, w := b.assigned()
	v := b.register("v")
	id, who, ok := uploadParts(s.ID, w.ID, "true")
	file := part{"result", "a", "app"}
	replace := func(name, content string) []part {
		parts := []part{id, who, ok, file}
		for i := range parts {
			if parts[i].name == name {
				parts[i].content = content
			}
		}
		return parts
	}
	for name, tt := range map[string]struct {
		parts  []part
		header map[string]string
		status int
		text   string
	}{
		"nothing":                   {nil, nil, 400, "build_id and worker_id required"},
		"no build":                  {[]part{who, ok, file}, nil, 400, "build_id and worker_id required"},
		"no worker":                 {[]part{id, ok, file}, nil, 400, "build_id and worker_id required"},
		"no file":                   {[]part{id, who, ok}, nil, 400, "Missing result file"},
		"an empty file field":       {[]part{id, who, ok, {name: "result"}}, nil, 400, "Missing result file"},
		"no success":                {[]part{id, who, file}, nil, 400, `Invalid request: success must be "true" or "false"`},
		"success unclear":           {replace("success", "maybe"), nil, 400, `Invalid request: success must be "true" or "false"`},
		"unknown build":             {replace("build_id", "unknown"), nil, 404, "Build not found"},
		"unknown worker":            {replace("worker_id", "unknown"), nil, 404, "Worker not found"},
		"build like a path":         {replace("build_id", "../../etc"), nil, 404, "Build not found"},
		"worker like a path":        {replace("worker_id", "../../etc"), nil, 404, "Worker not found"},
		"somebody else's build":     {replace("worker_id", v.ID), nil, 403, "Build not assigned to this worker"},
		"file too large":            {replace("result", strings.Repeat("x", 101)), nil, 413, "Result file is larger than 100 B"},
		"two files":                 {[]part{file, file}, nil, 400, "More than one result file"},
		"field contradicts header":  {[]part{id, who, ok, file}, map[string]string{"X-Build-Id": s.ID, "X-Worker-Id": v.ID}, 403, "Build not assigned to this worker"},
		"fields that contradict":    {[]part{id, id, who, {name: "build_id", content: "other"}}, nil, 400, "Invalid request: build_id differs from X-Build-Id"},
		"unknown build in header":   {nil, map[string]string{"X-Build-Id": "unknown", "X-Worker-Id": w.ID}, 404, "Build not found"},
		"path in header":            {nil, map[string]string{"X-Build-Id": "../x", "X-Worker-Id": w.ID}, 404, "Build not found"},
		"attempt that is no number": {[]part{id, who, ok, file}, map[string]string{"X-Build-Attempt": "x"}, 400, "Invalid X-Build-Attempt header"},
	} {
		header := key()
		maps.Copy(header, tt.header)
		r := b.form("/api/workers/upload", header, tt.parts...)
		require.Equal(t, tt.status, r.status, "%s: %s", name, r.body)
		require.Equal(t, tt.text, decode[api.Problem](t, r).Error, name)
		require.Equal(t, []string{"builds/" + s.ID + "/source.zip"}, b.files(), name)
	}
	r := b.json("POST", "/api/workers/upload", key(), `{"build_id":"x"}`)
	require.Equal(t, 400, r.status)
	require.Contains(t, []string{"assigned", "building"}, b.status(s.ID).Status, "untouched")
	require.Equal(t, 200, b.finish(s.ID, w.ID, strings.Repeat("x", 100)).status, "the limit is inclusive")
}

func TestUploadThatBreaksOffLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	id, who, ok := uploadParts(s.ID, w.ID, "true")
	kind, whole := form(part{"result", "a", strings.Repeat("app ", 1000)}, id, who, ok)
	for n := 10; n < len(whole)-2; n += 199 {
		r := b.send("POST", "/api/workers/upload", key("Content-Type", kind), string(whole[:n]))
		require.Equal(t, 400, r.status, "cut at %d: %s", n, r.body)
	}
	require.Equal(t, []string{"builds/" + s.ID + "/source.zip"}, b.files())
	require.Equal(t, "assigned", b.status(s.ID).Status)
}

func TestUploadIsRefusedEarlyByItsHeader(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, _ := b.assigned()
	v := b.register("v")
	r := b.announce("/api/workers/upload", "X-API-Key: "+apiKey, "X-Build-Id: "+s.ID, "X-Worker-Id: "+v.ID)
	require.Equal(t, 403, r.Status)
	require.Contains(t, r.Body, `"code":"not_assigned"`)
}

func TestMovingUploadIsASignOfLife(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.PresenceInterval = time.Millisecond })
	s, w := b.assigned()
	id, who, ok := uploadParts(s.ID, w.ID, "true")
	kind, whole := form(id, who, ok, part{"result", "a", strings.Repeat("app ", 100_000)})
	body, pipe := io.Pipe()
	ended := begin(t, b.client, "POST", b.url+"/api/workers/upload", key("Content-Type", kind), body)
	_, err := pipe.Write(whole[:len(whole)/2])
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.status(s.ID).Status == "building" }, waitFor, tick)
	_, err = pipe.Write(whole[len(whole)/2:])
	require.NoError(t, err)
	require.NoError(t, pipe.Close())
	require.Equal(t, 200, (<-ended).status)
}

// watchedBuilds counts look-ups and heartbeats of builds.
type watchedBuilds struct {
	takthttp.Builds
	found, heard *atomic.Int32
}

func (c watchedBuilds) Find(ctx context.Context, id string) (store.Build, error) {
	c.found.Add(1)
	return c.Builds.Find(ctx, id)
}

func (c watchedBuilds) RecordHeartbeat(ctx context.Context, s store.Heartbeat) (store.HeartbeatReply, error) {
	c.heard.Add(1)
	return c.Builds.RecordHeartbeat(ctx, s)
}

func TestAShortUploadReadsItsBuildOnce(t *testing.T) {
	t.Parallel()
	var found, heard atomic.Int32
	b := setupWith(t, func(d *takthttp.Deps) { d.Builds = watchedBuilds{d.Builds, &found, &heard} })
	s, w := b.assigned()
	found.Store(0)
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)
	require.EqualValues(t, 1, found.Load())
	require.Zero(t, heard.Load(), "the build was assigned a moment ago")
}

func TestFileOfAnUncertainResultIsKept(t *testing.T) {
	t.Parallel()
	b := setupWith(t, func(d *takthttp.Deps) {
		d.Builds = failing{Builds: d.Builds, err: store.Wrap(store.Unavailable, "away", store.ErrOutcomeUnknown)}
	})
	build, w := storeBuild(b), b.register("w")
	r := b.finish(build, w.ID, "app")
	require.Equal(t, 503, r.status, r.body)
	require.Contains(t, b.files(), "builds/"+build+"/result.ipa")
}

func TestUploadOfAStaleAttemptIsRefusedEarly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	require.Equal(t, 200, b.send("POST", "/api/workers/unregister", key("X-Worker-Token", w.AccessToken), "").status)
	v := b.register("v")
	require.Equal(t, 2, b.poll(v.AccessToken).Job.Attempt)
	for what, header := range map[string][]string{
		"early": {"X-Build-Id", s.ID, "X-Worker-Id", w.ID, "X-Build-Attempt", "1", "Expect", "100-continue"},
		"late":  {"X-Build-Attempt", "1"},
	} {
		id, who, ok := uploadParts(s.ID, w.ID, "true")
		r := b.form("/api/workers/upload", key(header...), id, who, ok, part{"result", "x", "late"})
		require.Equal(t, 409, r.status, "%s: %s", what, r.body)
		require.Equal(t, "stale_attempt", decode[api.Problem](t, r).Code)
	}
	id, who, ok := uploadParts(s.ID, w.ID, "true")
	r := b.form("/api/workers/upload", key(), id, who, ok, part{"result", "x", "late"})
	require.Equal(t, 403, r.status, "without the header: %s", r.body)
	r = b.form("/api/workers/upload", key("X-Build-Id", s.ID, "X-Worker-Id", "unknown"))
	require.Equal(t, 404, r.status, r.body)
	require.Equal(t, []string{"builds/" + s.ID + "/source.zip"}, b.files())
}
