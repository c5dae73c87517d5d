package builds

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/client"
	"takt/store"
)

// A build goes to the worker whose labels meet what it requires, and says so while there is
// none. One that nobody could ever take fails after its time.
func TestBuildsAreRoutedByPlatformAndLabels(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_PLATFORMS=android,linux", "TAKT_UNMATCHED_TTL=2s", "TAKT_BUILD_TIMEOUT=3s", "TAKT_CHECK_INTERVAL=1s")
	ctx, source := t.Context(), client.Bytes(takttest.Zip(t, map[string]string{"order.txt": "x"}))
	send := func(p store.Platform, require string) (string, error) {
		sub, err := c.Client.Submit(ctx, client.Submit{Platform: p, Source: source, Require: require})
		return sub.ID, err
	}
	_, err := send(store.IOS, "")
	require.ErrorContains(t, err, "Valid platform required (android|linux)")

	env.StartWorker(c, "plain", `cp order.txt "$TAKT_OUTPUT"`)
	p, err := env.Worker(c, "deb", `cp order.txt "$TAKT_OUTPUT.deb"`, nil, "--heartbeat", "500ms", "--platform", "linux", "--label", "go=1.26", "--label", "arch=arm64")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Stop(context.WithoutCancel(ctx), takttest.Patience))
		env.LogOnFailure("deb", p)
	})
	takttest.Eventually(t, "both have registered", func() bool { return len(takttest.Fleet(t, c)) == 2 })
	require.Equal(t, map[string]string{"go": "1.26", "arch": "arm64"}, takttest.Fleet(t, c)["deb"].Labels)

	debian, err := send("linux", "go>=1.9, arch in (arm64,amd64)")
	require.NoError(t, err)
	takttest.Eventually(t, "it is built", func() bool { return takttest.Status(t, c, debian).State == string(store.Completed) })
	require.Equal(t, takttest.Fleet(t, c)["deb"].ID, *takttest.Status(t, c, debian).WorkerID)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/api/builds/"+debian+"/download", nil)
	require.NoError(t, err)
	req.Header.Set("X-API-Key", c.APIKey)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Contains(t, resp.Header.Get("Content-Disposition"), debian+".deb")

	never, err := send("linux", "go>=2")
	require.NoError(t, err)
	why, err := c.Client.Why(ctx, never, client.BuildAuth{})
	require.NoError(t, err)
	require.True(t, why.Unmatched)
	require.Equal(t, "There is no worker for linux with go>=2.", why.Reason)
	takttest.Eventually(t, "it fails", func() bool { return takttest.Status(t, c, never).State == string(store.Failed) })
	require.Equal(t, "No worker can take this build: it needs linux with go>=2", *takttest.Status(t, c, never).ErrorMessage)
	plain := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	takttest.Eventually(t, "others go on", func() bool { return takttest.Status(t, c, plain).State == string(store.Completed) })
}
