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
func setupS3(t *testing.T, mode storage.Mode) (*fixture, *s3test.Server) {
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
		require.Equal(t, "assigned", b.status(build.ID).State)
		health := decode[api.Health](t, b.send("GET", "/health", nil, ""))
		require.Equal(t, false, health.Storage["ok"])

		server.Restart()
		require.Eventually(t, func() bool { return b.finish(build.ID, worker.ID, "the result").status == 200 },
			waitFor, tick, "it may take a moment until S3 is reached again")
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
