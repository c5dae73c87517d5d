package http

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/http/edge"
	"takt/storage"
	"takt/store"
	"takt/store/seal"
)

// agreeing accepts every build and every result.
type agreeing struct {
	Builds
	Queue
}

func (agreeing) Do(ctx context.Context, _ store.Work, fn func(context.Context) error) error {
	return fn(ctx)
}
func (agreeing) Full(context.Context) error { return nil }
func (agreeing) Enqueued(store.Build)       {}

func (agreeing) Submit(ctx context.Context, s store.Submission, files ...store.Staged) (store.Build, error) {
	return store.Build{ID: s.ID, Platform: s.Platform, State: store.Pending, SubmittedAt: time.Now()}, commitFiles(ctx, files)
}

// commitFiles commits files as a store does.
func commitFiles(ctx context.Context, files []store.Staged) error {
	for _, f := range files {
		if err := f.Commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

func FuzzSubmitForm(f *testing.F) {
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"source\"; filename=\"s\"\r\n\r\nzip\r\n--b\r\nContent-Disposition: form-data; name=\"platform\"\r\n\r\nios\r\n--b--\r\n"))
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"source\"\r\nContent-Digest: sha-256=:AAAA:\r\n\r\n\r\n--b\r\n\r\n--b--"))
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"labels\"\r\n\r\n{\"a\":\"b\"}\r\n--b\r\nContent-Disposition: form-data; name=\"priority\"\r\n\r\n-7\r\n--b--\r\n"))
	f.Add([]byte("--b--\r\n"))
	f.Add([]byte("--b\r\n"))
	f.Add([]byte(""))
	dir := f.TempDir()
	local, err := storage.OpenLocal(dir, seal.NewRing(seal.Key{}))
	require.NoError(f, err)
	files, err := storage.NewFiles(storage.ModeLocal, local, nil)
	require.NoError(f, err)
	defer files.Close()
	s, err := New(Deps{Background: func(func(context.Context)) {}, Builds: agreeing{}, Queue: agreeing{}, Publish: func(string, any) {}, Requests: agreeing{}, Files: files, Logger: zerolog.Nop()},
		Config{Config: edge.Config{APIKey: testKey, MaxField: 20, MaxParts: 5, WrongKeys: -1}, MaxSource: 100, MaxCerts: 50})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, form []byte) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/builds", bytes.NewReader(form))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		r.Header.Set("X-API-Key", testKey)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		require.Contains(t, []int{201, 400, 413}, w.Code, w.Body)
		if w.Code == 201 {
			var id struct{ ID string }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &id))
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "builds", id.ID)))
		}
		require.Empty(t, leftovers(t, dir))
	})
}

func leftovers(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, filepath.Base(path))
		}
		return err
	})
	require.NoError(t, err)
	return names
}

func FuzzPollRequest(f *testing.F) {
	h := &polls{tokens: knownTokens(f)}
	token := h.tokens.Issue(store.WorkerToken{Worker: 7, Counter: 9})
	for _, q := range []string{"", "worker_id=w", "wait=1e9", "wait=-0", "active=a,b", "active=%00", "worker_id=%2e%2e%2f", ";;=&"} {
		f.Add(q, "token")
		f.Add(q, token)
		f.Add(q, "")
	}
	f.Fuzz(func(t *testing.T, query, token string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/workers/poll", nil)
		r.URL.RawQuery = query
		r.Header["X-Worker-Token"] = []string{token}
		req, wait, err := h.read(r)
		if err != nil {
			return
		}
		require.True(t, wait >= 0 && wait <= maxWait)
		require.True(t, req.Token.Worker != 0 || store.ValidID(req.WorkerID))
		for _, id := range req.Active {
			require.True(t, store.ValidID(id))
		}
	})
}
