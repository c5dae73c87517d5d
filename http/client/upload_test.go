package client_test

import (
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/client"
	"takt/store"
)

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b := must(io.ReadAll(r))(t)
	return string(b)
}

// parts reads a form as "name=content" in order, and says where a file's digest
// is wrong.
func parts(r *http.Request) []string {
	mr, err := r.MultipartReader()
	if err != nil {
		return []string{err.Error()}
	}
	var seen []string
	for {
		p, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			return seen
		}
		if err != nil {
			return append(seen, err.Error())
		}
		content, err := io.ReadAll(p)
		if err != nil {
			return append(seen, err.Error())
		}
		name := p.FormName()
		if p.FileName() != "" {
			name += "@" + p.FileName()
			if d, ok := client.ParseDigest(p.Header.Get("Content-Digest")); !ok || d != sha256.Sum256(content) {
				name += " with a wrong digest"
			}
		}
		seen = append(seen, name+"="+string(content))
	}
}

func TestSubmitOnTheWire(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 300<<10)
	var seen []string
	c, rec := setup(t, func(w http.ResponseWriter, r *http.Request) {
		seen = parts(r)
		reply(201, `{"id":"b1","status":"pending","platform":"ios","submitted_at":5,"access_token":"tok"}`)(w, r)
	})
	path := filepath.Join(t.TempDir(), "s.zip")
	require.NoError(t, os.WriteFile(path, []byte(big), 0o600))
	source := must(client.File(path))(t)
	certs := client.Bytes([]byte("c"))
	var done, total int64
	clean := false
	got := must(c.Submit(t.Context(), client.Submit{
		Platform: store.IOS, Source: source, Certs: &certs, Inputs: store.Inputs{Facts: store.Facts{Commit: "0123abc", Branch: "main", Dirty: &clean}},
		Progress: func(d, n int64) { done, total = d, n },
	}))(t)
	require.Equal(t, []string{"source@source.zip=" + big, "certs@certs.zip=c", "platform=ios", "commit=0123abc", "branch=main", "dirty=false"}, seen)
	require.Equal(t, "tok", got.AccessToken)
	require.Equal(t, "POST", rec.last(t).Method)
	require.Equal(t, "/api/builds", rec.last(t).URL.Path)
	require.Equal(t, "100-continue", rec.last(t).Header.Get("Expect"))
	require.Equal(t, total, rec.last(t).ContentLength)
	require.Equal(t, total, done)
}

func TestUploadOnTheWire(t *testing.T) {
	t.Parallel()
	held := client.Held{BuildID: "b1", WorkerID: "w1", Attempt: 3}
	result := client.Bytes([]byte("binary"))
	chunked := result
	chunked.Size = -1
	tests := []struct {
		name string
		in   client.Upload
		want []string
	}{
		{"success", client.Upload{Held: held, Success: true, Result: &result}, []string{"build_id=b1", "worker_id=w1", "success=true", "result@result=binary"}},
		{"of unknown length", client.Upload{Held: held, Success: true, Result: &chunked}, []string{"build_id=b1", "worker_id=w1", "success=true", "result@result=binary"}},
		{"failure", client.Upload{Held: held, ErrorMessage: "boom"}, []string{"build_id=b1", "worker_id=w1", "success=false", "error_message=boom"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var seen []string
			c, rec := setup(t, func(w http.ResponseWriter, r *http.Request) {
				seen = parts(r)
				reply(200, `{"success":true,"status":"success"}`)(w, r)
			})
			must(c.Upload(t.Context(), tt.in))(t)
			require.Equal(t, tt.want, seen)
			head := rec.last(t).Header
			require.Equal(t, "b1", head.Get("X-Build-Id"))
			require.Equal(t, "w1", head.Get("X-Worker-Id"))
			require.Equal(t, "3", head.Get("X-Build-Attempt"))
		})
	}
}

func TestUploadRefusedBeforeItsBody(t *testing.T) {
	t.Parallel()
	c, _ := setup(t, reply(503, `{"error":"Build queue full, try again later","code":"queue_full"}`))
	opened := false
	source := client.Content{Size: 1 << 30, Open: func() (io.ReadCloser, error) { opened = true; return nil, errors.New("not to be read") }}
	_, err := c.Submit(t.Context(), client.Submit{Platform: store.IOS, Source: source})
	require.Equal(t, store.QueueFull, store.CodeOf(err))
	require.False(t, opened)
}

func TestUploadThatStalls(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	c, _ := setup(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = r.Body.Read(make([]byte, 1))
		<-release // reads no further
	}, func(cfg *client.Config) { cfg.StallTimeout = 50 * time.Millisecond })
	defer close(release)
	endless := client.Content{Size: 1 << 40, Open: func() (io.ReadCloser, error) { return io.NopCloser(zeros{}), nil }}
	_, err := c.Submit(t.Context(), client.Submit{Platform: store.IOS, Source: endless})
	require.ErrorContains(t, err, "stalled")
	require.True(t, client.Temporary(err))
}

func TestUploadReplyMayTakeLongerThanAStall(t *testing.T) {
	t.Parallel()
	c, _ := setup(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		timer := time.NewTimer(1500 * time.Millisecond)
		defer timer.Stop()
		<-timer.C
		reply(200, `{}`)(w, r)
	}, func(cfg *client.Config) { cfg.StallTimeout = time.Second })
	result := client.Bytes([]byte("x"))
	must(c.Upload(t.Context(), client.Upload{Held: client.Held{BuildID: "b"}, Success: true, Result: &result}))(t)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestFileContent(t *testing.T) {
	t.Parallel()
	_, err := client.File(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = client.File(t.TempDir())
	require.Error(t, err)
}

func TestParseDigest(t *testing.T) {
	t.Parallel()
	d := sha256.Sum256([]byte("x"))
	for _, good := range []string{client.FormatDigest(d), "md5=:AAAA:, " + client.FormatDigest(d), strings.Replace(client.FormatDigest(d), "sha", "SHA", 1)} {
		got, ok := client.ParseDigest(good)
		require.True(t, ok, good)
		require.Equal(t, d, got)
	}
	for _, bad := range []string{"", "sha-256=", "sha-256=:AAAA:", "sha-256=:!:", strings.TrimSuffix(client.FormatDigest(d), ":"), "sha-512=:AAAA:"} {
		_, ok := client.ParseDigest(bad)
		require.False(t, ok, bad)
	}
}
