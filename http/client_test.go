package http_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// TestOurOwnClientUnderstandsTheServer goes the main way with the client that
// the command line and the worker use.
func TestOurOwnClientUnderstandsTheServer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	c, err := client.New(client.Config{BaseURL: b.url, APIKey: apiKey, HTTPClient: b.client})
	require.NoError(t, err)
	content, certs := strings.Repeat("source ", 200_000), client.Bytes([]byte("certs"))
	s, err := c.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte(content)), Certs: &certs})
	require.NoError(t, err)
	owner := client.BuildAuth{Token: s.AccessToken}

	w, err := c.Register(ctx, api.Register{Name: "w", Capabilities: []byte(`{"platforms":["ios"]}`)})
	require.NoError(t, err)
	p, err := c.Poll(ctx, client.Poll{Token: w.AccessToken, Wait: time.Second, Active: []string{}})
	require.NoError(t, err)
	require.Equal(t, s.ID, p.Job.ID)
	held := client.Held{BuildID: s.ID, WorkerID: w.ID, Attempt: p.Job.Attempt}

	file := target(t)
	got, err := c.Source(ctx, held, file, client.FetchOptions{})
	require.NoError(t, err)
	require.True(t, got.Verified)
	require.EqualValues(t, len(content), got.Size)
	got, err = c.Certs(ctx, held, target(t), client.FetchOptions{})
	require.NoError(t, err)
	require.True(t, got.Verified, "the digest is that of the plain content")

	half := 50.0
	beat, err := c.Heartbeat(ctx, held, &half)
	require.NoError(t, err)
	require.False(t, beat.Cancelled)
	posted, err := c.PostLogs(ctx, held, []api.LogMessage{{Level: "info", Message: "hello"}})
	require.NoError(t, err)
	require.Equal(t, 1, *posted.Count)

	result := client.Bytes([]byte(strings.Repeat("result ", 200_000)))
	up := client.Upload{Held: held, Success: true, Result: &result}
	for range 2 { // the second is the repeat of a lost answer
		u, err := c.Upload(ctx, up)
		require.NoError(t, err)
		require.Equal(t, "success", u.Status)
	}
	got, err = c.Download(ctx, s.ID, owner, target(t), client.FetchOptions{})
	require.NoError(t, err)
	require.True(t, got.Verified)
	require.Equal(t, s.ID+".ipa", got.Name)

	lines, err := c.Logs(ctx, s.ID, owner, client.LogsAfter{})
	require.NoError(t, err)
	require.Equal(t, "Build completed successfully", lines.Logs[len(lines.Logs)-1].Message)
	_, err = c.Cancel(ctx, s.ID)
	require.Equal(t, store.InvalidState, store.CodeOf(err))
	_, err = c.Status(ctx, "unknown", client.BuildAuth{})
	require.Equal(t, store.NotFound, store.CodeOf(err))
	_, err = c.Upload(ctx, client.Upload{Held: client.Held{BuildID: s.ID, WorkerID: w.ID}, ErrorMessage: "x"})
	require.Equal(t, store.Conflict, store.CodeOf(err))
	_, err = c.Unregister(ctx, p.AccessToken)
	require.NoError(t, err)
}

// TestOurOwnClientSeesToTheFleet goes the ways of those who look after builds and
// workers.
func TestOurOwnClientSeesToTheFleet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	c, err := client.New(client.Config{BaseURL: b.url, APIKey: apiKey, HTTPClient: b.client})
	require.NoError(t, err)
	s, w := b.assigned()
	drained, err := c.Drain(ctx, w.ID)
	require.NoError(t, err)
	require.True(t, drained.Draining)
	resumed, err := c.Resume(ctx, w.ID)
	require.NoError(t, err)
	require.False(t, resumed.Draining)
	_, err = c.FailBuild(ctx, s.ID, "enough")
	require.NoError(t, err)
	shown, err := c.Show(ctx, s.ID)
	require.NoError(t, err)
	require.Equal(t, "enough", *shown.ErrorMessage)
	again, err := c.Retry(ctx, s.ID, client.BuildAuth{Token: s.AccessToken})
	require.NoError(t, err)
	require.Equal(t, s.ID, again.OriginalBuildID)
	list, err := c.Workers(ctx, client.WorkerFilter{Status: "idle", Limit: 3})
	require.NoError(t, err)
	require.Len(t, list.Workers, 1)
	_, err = c.DeleteWorker(ctx, w.ID)
	require.NoError(t, err)
	_, err = c.Worker(ctx, w.ID)
	require.Equal(t, store.NotFound, store.CodeOf(err))
	for _, id := range []string{"", "../w"} {
		_, err = c.Drain(ctx, id)
		require.Equal(t, store.InvalidArgument, store.CodeOf(err))
	}
}

func target(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}
