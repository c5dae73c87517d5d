package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
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

// shelf serves one file the way the controller does, cutting replies short
// after the given numbers of bytes, one number per request.
type shelf struct {
	content []byte
	etag    string
	digest  bool
	cuts    []int
	// onRequest may change the shelf before the n-th reply (from 0).
	onRequest func(n int, s *shelf)
	requests  int
	ranges    []string
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.onRequest != nil {
		s.onRequest(s.requests, s)
	}
	n := s.requests
	s.requests++
	s.ranges = append(s.ranges, r.Header.Get("Range"))
	if s.etag != "" {
		w.Header().Set("ETag", s.etag)
	}
	if s.digest {
		w.Header().Set("Repr-Digest", client.FormatDigest(sha256.Sum256(s.content)))
	}
	w.Header().Set("Content-Disposition", `attachment; filename="b1.ipa"`)
	out := w
	if n < len(s.cuts) {
		out = &cut{ResponseWriter: w, left: s.cuts[n]}
	}
	http.ServeContent(out, r, "", time.Time{}, bytes.NewReader(s.content))
}

// cut breaks the connection after left bytes.
type cut struct {
	http.ResponseWriter
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	n, _ := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	c.left -= n
	if c.left == 0 {
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, nil
}

func fetch(t *testing.T, s *shelf, before string, o client.FetchOptions) (client.Fetched, string, error) {
	t.Helper()
	c, _ := setup(t, s.ServeHTTP)
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(before), 0o600))
	f := must(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	if o.Retry.Attempts == 0 {
		o.Retry = quick()
	}
	got, err := c.Download(t.Context(), "b1", client.BuildAuth{}, f, o)
	after, readErr := os.ReadFile(path)
	require.NoError(t, readErr)
	return got, string(after), err
}

func TestFetch(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("0123456789", 10_000)
	t.Run("whole, over what was there before", func(t *testing.T) {
		t.Parallel()
		got, after, err := fetch(t, &shelf{content: []byte(content), digest: true}, strings.Repeat("z", 200_000), client.FetchOptions{})
		require.NoError(t, err)
		require.Equal(t, content, after)
		require.True(t, got.Verified)
		require.Equal(t, int64(len(content)), got.Size)
		require.Equal(t, sha256.Sum256([]byte(content)), got.Digest)
		require.Equal(t, "b1.ipa", got.Name)
	})
	t.Run("resumes where each connection was cut", func(t *testing.T) {
		t.Parallel()
		s := &shelf{content: []byte(content), etag: `"v1"`, digest: true, cuts: []int{100, 60_000, 1}}
		got, after, err := fetch(t, s, "", client.FetchOptions{})
		require.NoError(t, err)
		require.Equal(t, content, after)
		require.True(t, got.Verified)
		require.Equal(t, []string{"", "bytes=100-", "bytes=60100-", "bytes=60101-"}, s.ranges)
	})
	t.Run("begins anew when the file changed meanwhile", func(t *testing.T) {
		t.Parallel()
		s := &shelf{content: []byte(content), etag: `"v1"`, digest: true, cuts: []int{100}}
		s.onRequest = func(n int, s *shelf) {
			if n == 1 {
				s.content, s.etag = []byte("another"), `"v2"`
			}
		}
		_, after, err := fetch(t, s, "", client.FetchOptions{})
		require.NoError(t, err)
		require.Equal(t, "another", after)
	})
	t.Run("begins anew without a version to compare", func(t *testing.T) {
		t.Parallel()
		s := &shelf{content: []byte(content), cuts: []int{100}}
		got, after, err := fetch(t, s, "", client.FetchOptions{})
		require.NoError(t, err)
		require.Equal(t, content, after)
		require.False(t, got.Verified)
	})
	t.Run("takes over an earlier part, checked by the digest", func(t *testing.T) {
		t.Parallel()
		s := &shelf{content: []byte(content), digest: true}
		_, after, err := fetch(t, s, content[:4000], client.FetchOptions{Resume: true})
		require.NoError(t, err)
		require.Equal(t, content, after)
		require.Equal(t, []string{"bytes=4000-"}, s.ranges)
	})
	t.Run("an earlier part of something else is thrown away", func(t *testing.T) {
		t.Parallel()
		s := &shelf{content: []byte(content), digest: true}
		_, after, err := fetch(t, s, "rubbish", client.FetchOptions{Resume: true})
		require.NoError(t, err)
		require.Equal(t, content, after)
		require.Equal(t, []string{"bytes=7-", ""}, s.ranges)
	})
	t.Run("an earlier part that is too long is thrown away", func(t *testing.T) {
		t.Parallel()
		s := &shelf{content: []byte(content), digest: true}
		_, after, err := fetch(t, s, content+"tail", client.FetchOptions{Resume: true})
		require.NoError(t, err)
		require.Equal(t, content, after)
	})
	t.Run("a bad digest is fetched again, then reported", func(t *testing.T) {
		t.Parallel()
		c, rec := setup(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Repr-Digest", client.FormatDigest(sha256.Sum256([]byte("good"))))
			_, _ = w.Write([]byte("evil"))
		})
		f := target(t)
		_, err := c.Source(t.Context(), client.Held{BuildID: "b1"}, f, client.FetchOptions{Retry: quick()})
		require.ErrorIs(t, err, client.ErrDigest)
		require.Equal(t, 3, rec.count())
	})
	t.Run("a refusal is final", func(t *testing.T) {
		t.Parallel()
		c, rec := setup(t, reply(403, `{"error":"Build not assigned to this worker","code":"not_assigned"}`))
		_, err := c.Certs(t.Context(), client.Held{BuildID: "b1", WorkerID: "w1", Attempt: 4}, target(t), client.FetchOptions{Retry: quick()})
		require.Equal(t, store.NotAssigned, store.CodeOf(err))
		require.Equal(t, 1, rec.count())
		require.Equal(t, "/api/builds/b1/certs", rec.last(t).URL.Path)
		require.Equal(t, "w1", rec.last(t).Header.Get("X-Worker-Id"))
		require.Equal(t, "4", rec.last(t).Header.Get("X-Build-Attempt"))
	})
	t.Run("attempts count from the last byte received", func(t *testing.T) {
		t.Parallel()
		s := &shelf{content: []byte(content), etag: `"v1"`}
		for range 20 {
			s.cuts = append(s.cuts, 10)
		}
		r := quick()
		r.Attempts = 2
		_, after, err := fetch(t, s, "", client.FetchOptions{Retry: r})
		require.NoError(t, err)
		require.Equal(t, content, after)
	})
}

func target(t *testing.T) *os.File {
	t.Helper()
	f := must(os.Create(filepath.Join(t.TempDir(), "target")))(t)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestFetchThatStallsResumes(t *testing.T) {
	t.Parallel()
	n := 0
	c, rec := setup(t, func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("ETag", `"v"`)
		if n == 1 {
			w.Header().Set("Content-Length", "6")
			_, _ = io.WriteString(w, "abc")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Range", "bytes 3-5/6")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, "def")
	}, func(cfg *client.Config) { cfg.StallTimeout = 50 * time.Millisecond })
	f := target(t)
	must(c.Download(t.Context(), "b1", client.BuildAuth{}, f, client.FetchOptions{Retry: quick()}))(t)
	got := must(os.ReadFile(f.Name()))(t)
	require.Equal(t, "abcdef", string(got))
	require.Equal(t, `"v"`, rec.last(t).Header.Get("If-Range"))
}

func TestFetchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cause := fmt.Errorf("build cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	c, _ := setup(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "abc")
		_ = http.NewResponseController(w).Flush()
		cancel(cause)
		<-r.Context().Done()
	})
	_, err := c.Download(ctx, "b1", client.BuildAuth{}, target(t), client.FetchOptions{})
	require.ErrorIs(t, err, cause)
}
