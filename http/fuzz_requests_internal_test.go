package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
	"takt/store/seal"
)

// believer believes every worker and keeps what it was told last.
type believer struct {
	agreeing
	build     store.Build
	heartbeat *store.Heartbeat
}

func (b believer) Find(_ context.Context, id string) (store.Build, error) {
	if id != b.build.ID {
		return store.Build{}, buildNotFound()
	}
	return b.build, nil
}

func (b believer) Held(ctx context.Context, s store.Heartbeat) (store.Build, error) {
	*b.heartbeat = s
	return b.Find(ctx, s.BuildID)
}

func (b believer) RecordHeartbeat(_ context.Context, s store.Heartbeat) (store.HeartbeatReply, error) {
	*b.heartbeat = s
	return store.HeartbeatReply{}, nil
}

func (b believer) Heartbeat(ctx context.Context, s store.Heartbeat) (store.HeartbeatReply, error) {
	return b.RecordHeartbeat(ctx, s)
}

func (b believer) Telemetry(ctx context.Context, s store.Heartbeat, _ store.Telemetry) (store.HeartbeatReply, error) {
	return b.RecordHeartbeat(ctx, s)
}

// host registers every worker.
type host struct{ Workers }

func (host) Register(context.Context, store.Registration) (store.Registered, error) {
	return store.Registered{}, nil
}

func (believer) Freed(string)              {}
func (believer) Able(string)               {}
func (believer) Requeued([]store.BuildRef) {}

func (believer) Finish(ctx context.Context, r store.Result, files ...store.Staged) (store.Finished, error) {
	if !store.ValidID(r.WorkerID) {
		return store.Finished{}, errors.New("a worker that is no name")
	}
	return store.Finished{}, commitFiles(ctx, files)
}

// gullible is a server whose every dependency says yes, with one build.
func gullible(f *testing.F) (s *Server, heartbeat *store.Heartbeat, dir, content string) {
	f.Helper()
	dir, content = f.TempDir(), strings.Repeat("0123456789", 10)
	local, err := storage.OpenLocal(dir, seal.NewRing(seal.Key{}))
	require.NoError(f, err)
	files, err := storage.NewFiles(storage.ModeLocal, local, nil)
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, files.Close()) })
	u, err := files.Create(f.Context(), 1000, "", strings.NewReader(content))
	require.NoError(f, err)
	_, err = u.Stage(f.Context(), "builds/b/source.zip")
	require.NoError(f, err)
	require.NoError(f, u.Commit(f.Context()))
	heartbeat = &store.Heartbeat{}
	b := believer{heartbeat: heartbeat, build: store.Build{
		ID: "b", Platform: store.IOS, State: store.Building, WorkerID: "w", Attempt: 1,
		Source: &store.File{Name: "builds/b/source.zip", Size: u.Size, SHA256: u.SHA256, Location: store.OnDisk},
	}}
	s, err = New(Deps{
		Background: func(func(context.Context)) {},
		Tokens:     knownTokens(f),
		Builds:     b, Queue: b, Workers: host{}, Publish: func(string, any) {}, Requests: b, Files: files,
		Metrics: prometheus.NewRegistry(), Logger: zerolog.Nop(),
	}, Config{Config: edge.Config{APIKey: testKey, AdminKey: testKey + "-admin", MaxField: 20, MaxParts: 6, MaxJSON: 4096, WrongKeys: -1}, MaxResult: 100, PollRate: -1, RegisterRate: -1})
	require.NoError(f, err)
	return s, heartbeat, dir, content
}

func ask(t *testing.T, s *Server, method, path string, header map[string]string, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
	r.Header.Set("X-API-Key", testKey)
	for k, v := range header {
		r.Header[http.CanonicalHeaderKey(k)] = []string{v}
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func FuzzUploadForm(f *testing.F) {
	part := func(name, content string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + content + "\r\n"
	}
	whole := part("build_id", "b") + part("worker_id", "w") + part("success", "true")
	f.Add([]byte(whole + part(`result"; filename="r`, "app") + "--b--\r\n"))
	f.Add([]byte(part(`result"; filename="r`, "app") + whole + "--b--"))
	f.Add([]byte(whole))
	f.Add([]byte(part("build_id", "../b") + part("worker_id", "w") + part("success", "false") + part("error_message", "\x00\xff") + "--b--\r\n"))
	f.Add([]byte("--b\r\nContent-Transfer-Encoding: quoted-printable\r\nContent-Disposition: form-data; name=build_id\r\n\r\n=62\r\n--b--\r\n"))
	s, _, dir, _ := gullible(f)
	f.Fuzz(func(t *testing.T, form []byte) {
		w := ask(t, s, http.MethodPost, "/api/workers/upload", map[string]string{"Content-Type": "multipart/form-data; boundary=b"}, form)
		require.Contains(t, []int{200, 400, 404, 413}, w.Code, w.Body)
		for _, name := range leftovers(t, dir) {
			require.Contains(t, []string{"source.zip", "result.ipa"}, name)
		}
	})
}

func FuzzJSONBodies(f *testing.F) {
	paths := []string{
		"/api/workers/register", "/api/builds/b/logs", "/api/builds/b/heartbeat?worker_id=w", "/api/builds/b/telemetry",
		"/api/workers/heartbeat", "/api/workers/fail",
	}
	for i := range paths {
		for _, body := range []string{
			"", "null", "{}", "[]", "0", `"x"`, `{"name":"n","capabilities":{}}`, `{"level":"info","message":"m"}`, `{"logs":[{"level":"info","message":"m"},7,null]}`,
			`{"progress":50}`, `{"progress":1e999}`, `{"type":"heartbeat","timestamp":"t","data":{"metrics":{"cpu_percent":1,"memory_mb":-0}}}`,
			`{"build_id":"b","error":"e"}`, `{"build_id":["b"]}`, "\x00", "\xff", `{"a":` + strings.Repeat("[", 500), `{"message":"\ud800","level":"warn"}`,
		} {
			f.Add(uint8(i), "application/json", []byte(body))
		}
	}
	f.Add(uint8(0), "text/plain", []byte("{}"))
	f.Add(uint8(0), "application/json; charset=\"", []byte("{}"))
	s, heartbeat, _, _ := gullible(f)
	f.Fuzz(func(t *testing.T, path uint8, kind string, body []byte) {
		*heartbeat = store.Heartbeat{}
		w := ask(t, s, http.MethodPost, paths[int(path)%len(paths)], map[string]string{"Content-Type": kind, "X-Worker-Id": "w", "X-Build-Id": "b"}, body)
		require.Less(t, w.Code, 500, w.Body)
		for _, l := range heartbeat.Logs {
			require.True(t, l.Level.Valid())
			require.True(t, utf8.ValidString(l.Message))
			require.NotContains(t, l.Message, "\x00", "the database takes none")
		}
	})
}

func FuzzRange(f *testing.F) {
	sum := sha256.Sum256([]byte(strings.Repeat("0123456789", 10)))
	etag := fmt.Sprintf(`"%x"`, sum)
	for _, r := range []string{"", "bytes=0-9", "bytes=-5", "bytes=90-", "bytes=100-", "bytes=5-1", "bytes=0-0,2-3", "bytes=0-18446744073709551615", "items=0-1", "bytes=--1", "bytes = 0-1", "bytes=0-," + strings.Repeat("0-0,", 200)} {
		f.Add(r, "", "")
		f.Add(r, etag, "")
		f.Add(r, `W/"x"`, etag)
		f.Add(r, "Mon, 02 Jan 2006 15:04:05 GMT", "*")
	}
	s, _, _, content := gullible(f)
	f.Fuzz(func(t *testing.T, ranges, ifRange, ifNoneMatch string) {
		header := map[string]string{"X-Worker-Id": "w", "Range": ranges, "If-Range": ifRange, "If-None-Match": ifNoneMatch}
		w := ask(t, s, http.MethodGet, "/api/builds/b/source", header, nil)
		body := w.Body.String()
		switch w.Code {
		case 200:
			require.Equal(t, content, body)
		case 206:
			require.LessOrEqual(t, len(body), 100*len(content), "no more than was asked for")
			var from, to, size int
			if n, _ := fmt.Sscanf(w.Header().Get("Content-Range"), "bytes %d-%d/%d", &from, &to, &size); n == 3 {
				require.Equal(t, len(content), size)
				require.Equal(t, content[from:to+1], body)
			}
		case 304, 412:
			require.Empty(t, body)
		default:
			require.Equal(t, 416, w.Code, "%s", body)
		}
	})
}

func FuzzWorkerHeaders(f *testing.F) {
	f.Add("w", "b", "1", "token", "id-1", "https://example.org")
	f.Add("../w", "b\x00", "-1", "", "a b", "null")
	f.Add("", "", "9999999999", strings.Repeat("t", 300), strings.Repeat("i", 129), "\r\n")
	s, heartbeat, _, _ := gullible(f)
	f.Fuzz(func(t *testing.T, worker, build, number, token, id, origin string) {
		*heartbeat = store.Heartbeat{}
		header := map[string]string{
			"X-Worker-Id": worker, "X-Build-Id": build, "X-Build-Attempt": number, "X-Build-Token": token, "X-Request-Id": id, "Origin": origin,
		}
		for _, target := range []string{"POST /api/builds/b/telemetry", "GET /api/builds/b/source", "POST /api/workers/upload", "GET /api/builds/b/status"} {
			method, path, _ := strings.Cut(target, " ")
			w := ask(t, s, method, path, header, nil)
			require.Less(t, w.Code, 500, w.Body)
			require.Regexp(t, `^[A-Za-z0-9_.:-]{1,128}$`, w.Header().Get(api.HeaderRequestID))
		}
		require.True(t, heartbeat.WorkerID == "" || store.ValidID(heartbeat.WorkerID))
		require.GreaterOrEqual(t, heartbeat.Attempt, 0)
	})
}
