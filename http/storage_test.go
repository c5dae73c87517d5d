package http_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/storage"
	"takt/storage/s3test"
	"takt/store/seal"
)

// setupS3 is setup with an S3 server behind it.
func setupS3(t *testing.T, mode storage.Mode) (*bundle, *s3test.Server) {
	t.Helper()
	server := s3test.Start(t)
	s3, err := storage.OpenS3(storage.S3Config{
		Endpoint: server.Endpoint, Bucket: s3test.Bucket, AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
		StallTimeout: time.Second, RestTime: 50 * time.Millisecond,
	})
	require.NoError(t, err)
	dir := t.TempDir()
	local, err := storage.OpenLocal(dir, seal.NewRing(seal.Key{1}))
	require.NoError(t, err)
	files, err := storage.NewFiles(mode, local, s3)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, files.Close()) })
	b := setupWith(t, func(d *takthttp.Deps) { d.Files = files })
	b.dir = dir
	return b, server
}

func TestDownloadsFromS3AreAsFromTheDisk(t *testing.T) {
	t.Parallel()
	b, server := setupS3(t, storage.ModeS3)
	build, worker := b.assigned(part{"certs", "c.zip", "certificates"})
	require.Len(t, server.Objects(), 2)
	require.Empty(t, b.files(), "nothing stays on the disk")
	holder := func(more ...string) map[string]string { return key(append(more, "X-Worker-Id", worker.ID)...) }
	path := "/api/builds/" + build.ID + "/source"

	whole := b.send("GET", path, holder(), "")
	require.Equal(t, 200, whole.status)
	require.Equal(t, "source code", whole.body)
	require.Equal(t, "application/zip", whole.header.Get("Content-Type"))
	etag := whole.header.Get("ETag")
	require.NotEmpty(t, whole.header.Get("Repr-Digest"))

	head := b.send("HEAD", path, holder(), "")
	require.Equal(t, 200, head.status)
	require.Equal(t, "11", head.header.Get("Content-Length"))
	require.Empty(t, head.body)

	piece := b.send("GET", path, holder("Range", "bytes=7-", "If-Range", etag), "")
	require.Equal(t, 206, piece.status)
	require.Equal(t, "code", piece.body)
	require.Equal(t, "bytes 7-10/11", piece.header.Get("Content-Range"))
	require.Equal(t, 200, b.send("GET", path, holder("Range", "bytes=7-", "If-Range", `"other"`), "").status)
	require.Equal(t, 304, b.send("GET", path, holder("If-None-Match", etag), "").status)
	require.Equal(t, 416, b.send("GET", path, holder("Range", "bytes=99-"), "").status)
	require.Equal(t, "certificates", b.send("GET", "/api/builds/"+build.ID+"/certs", holder(), "").body)

	require.Equal(t, 200, b.finish(build.ID, worker.ID, "the result").status)
	require.Equal(t, "the result", b.send("GET", "/api/builds/"+build.ID+"/download", key(), "").body)
	require.Equal(t, 200, b.finish(build.ID, worker.ID, "the result").status, "a repeat")
	require.Len(t, server.Objects(), 3, "which left no object")
}

func TestRefusedResultsLeaveNoObject(t *testing.T) {
	t.Parallel()
	b, server := setupS3(t, storage.ModeDual)
	build, _ := b.assigned()
	other := b.register("other")
	require.Equal(t, 403, b.finish(build.ID, other.ID, "not mine").status)
	require.Len(t, server.Objects(), 1)
	require.Equal(t, []string{"builds/" + build.ID + "/source.zip"}, b.files())
}

func TestS3Outage(t *testing.T) {
	t.Parallel()

	t.Run("s3 refuses and leaves nothing behind", func(t *testing.T) {
		t.Parallel()
		b, server := setupS3(t, storage.ModeS3)
		build, worker := b.assigned()
		server.Kill()
		r := b.form("/api/builds/submit", key(), source("x"), part{name: "platform", content: "ios"})
		require.Equal(t, 503, r.status, r.body)
		require.NotEmpty(t, r.header.Get("Retry-After"))
		require.Equal(t, 1, b.count())
		require.Empty(t, b.files())
		require.Equal(t, 503, b.finish(build.ID, worker.ID, "the result").status)
		down := b.send("GET", "/api/builds/"+build.ID+"/source", key("X-Worker-Id", worker.ID), "")
		require.Equal(t, 503, down.status, "before the status line")
		require.NotContains(t, down.body, server.Endpoint)
		require.Equal(t, "building", b.status(build.ID).State)
		health := decode[api.Health](t, b.send("GET", "/health", nil, ""))
		require.Equal(t, false, health.Storage["ok"])

		server.Restart()
		require.Equal(t, 200, b.finish(build.ID, worker.ID, "the result").status)
		require.NotContains(t, b.logs.String(), s3test.SecretKey)
	})

	t.Run("dual goes on", func(t *testing.T) {
		t.Parallel()
		b, server := setupS3(t, storage.ModeDual)
		server.Freeze()
		build, worker := b.assigned()
		require.Equal(t, 200, b.finish(build.ID, worker.ID, "the result").status)
		require.Equal(t, "the result", b.send("GET", "/api/builds/"+build.ID+"/download", key(), "").body)
		var pending int
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM build_files WHERE copy_due IS NOT NULL`).Scan(&pending))
		require.Equal(t, 2, pending)
		health := decode[api.Health](t, b.send("GET", "/health", nil, ""))
		require.Equal(t, true, health.Storage["ok"])
		require.Equal(t, false, health.Storage["s3"].(map[string]any)["ok"])
	})
}
