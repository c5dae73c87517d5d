package builds

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/runner"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// A submitter and a worker with keys of their own, until these are revoked.
func TestKeysOfASubmitterAndOfAWorker(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	token, err := env.Client(c, "keys", "enroll")
	require.NoError(t, err, token)
	const command = `cp order.txt "$TAKT_OUTPUT"`
	forge := func() *process.Process {
		p, err := env.Worker(c, "forge", command, nil, "--heartbeat", "500ms", "--enroll", token)
		require.NoError(t, err)
		t.Cleanup(func() { env.LogOnFailure("forge", p) })
		return p
	}
	worker := forge()
	kept := filepath.Join(env.WorkerState("forge"), "key")
	takttest.Eventually(t, "it has its key", func() bool { _, err := os.Stat(kept); return err == nil })
	info, err := os.Stat(kept)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode())

	key, err := env.Client(c, "keys", "create", "ci", "--scope", "submit", "--expires", "90d")
	require.NoError(t, err, key)
	ci, err := client.New(client.Config{BaseURL: c.URL, APIKey: key})
	require.NoError(t, err)
	sent := client.Submit{Platform: store.Android, Source: client.Bytes(takttest.Zip(t, map[string]string{"order.txt": "x"}))}
	build, err := ci.Submit(t.Context(), sent)
	require.NoError(t, err)
	takttest.Eventually(t, "the build completes", func() bool {
		now, err := ci.Status(t.Context(), build.ID, client.BuildAuth{})
		require.NoError(t, err)
		require.Equal(t, "ci", now.Submitter)
		return now.Status == string(store.Completed)
	})
	require.NoError(t, worker.Stop(t.Context(), takttest.Patience))
	again := forge() // as a unit file would have it
	build, err = ci.Submit(t.Context(), sent)
	require.NoError(t, err)
	takttest.Eventually(t, "with the key that it kept", func() bool { return takttest.Status(t, c, build.ID).Status == string(store.Completed) })
	require.NoError(t, again.Stop(t.Context(), takttest.Patience))

	list, err := env.Client(c, "keys", "list")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^ci +active +submit `, list)
	require.Regexp(t, `(?m)^forge-[a-z0-9]{8} +active +worker `, list)
	require.Regexp(t, `(?m)^enroll-\w+ +revoked +enroll `, list)
	said, err := env.Client(c, "keys", "revoke", "ci", "--reason", "test")
	require.NoError(t, err)
	require.Equal(t, "revoked", said)
	_, err = client.Call(t.Context(), ci, api.ShowBuild, api.BuildPath{ID: api.BuildID(build.ID)})
	require.Equal(t, store.InvalidAPIKey, store.CodeOf(err))
}

// looksForKeys is a build that prints what it can read of its worker.
const looksForKeys = `{ env; tr '\0' '\n' <"/proc/$PPID/environ"; cat "$STATE"/*; } >"$TAKT_OUTPUT" 2>/dev/null || true`

// enrollKey gives a worker a key in an environment file, and returns the key.
func enrollKey(env *takttest.Env, c *process.Controller, file string) string {
	env.T.Helper()
	token, err := env.Client(c, "keys", "enroll")
	require.NoError(env.T, err, token)
	said, err := env.Client(c, "worker", "enroll", "--url", c.URL, "--name", "forge", "--env-file", file, token)
	require.NoError(env.T, err, said)
	require.Regexp(env.T, `key forge-[a-z0-9]{8} is in `+file, said)
	info, err := os.Stat(file)
	require.NoError(env.T, err)
	require.EqualValues(env.T, 0o600, info.Mode())
	text, err := os.ReadFile(file)
	require.NoError(env.T, err)
	_, err = env.Client(c, "worker", "enroll", "--env-file", file, token)
	require.Equal(env.T, store.InvalidAPIKey, store.CodeOf(err), "a token is good for one key")
	again, err := os.ReadFile(file)
	require.NoError(env.T, err)
	require.Equal(env.T, string(text), string(again), "nothing is lost when it fails")
	key := regexp.MustCompile(`(?m)^TAKT_API_KEY=(.*)$`).FindSubmatch(text)
	require.NotNil(env.T, key)
	return string(key[1])
}

// A worker with its key in the environment file of its unit: no build can read the key.
func TestWorkerEnroll(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	file := filepath.Join(t.TempDir(), "worker.env")
	require.NoError(t, os.WriteFile(file, []byte("# comment\nTAKT_URL=http://127.0.0.1:1\nTAKT_API_KEY=\nWORKER_FLAGS=\"-c 2\"\n"), 0o644))
	key := enrollKey(env, c, file)
	require.Regexp(t, `^takt_`, key)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "# comment\nTAKT_URL="+c.URL+"\nTAKT_API_KEY="+key+"\nWORKER_FLAGS=\"-c 2\"\n", string(text))

	worker, err := env.Worker(c, "forge", looksForKeys, []string{"TAKT_API_KEY=" + key}, "--env", "STATE="+env.WorkerState("forge"))
	require.NoError(t, err)
	t.Cleanup(func() { env.LogOnFailure("forge", worker) })
	build, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.Android, Source: client.Bytes(takttest.Zip(t, map[string]string{"order.txt": "x"}))})
	require.NoError(t, err)
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, build.ID).Status == string(store.Completed) })
	out := filepath.Join(t.TempDir(), "out")
	said, err := env.Client(c, "download", build.ID, "--output", out)
	require.NoError(t, err, said)
	seen, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(seen), "TAKT_BUILD_ID=")
	require.NotContains(t, string(seen), key)
	list, err := env.Client(c, "keys", "list")
	require.NoError(t, err)
	all, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
	require.NoError(t, err)
	require.Regexp(t, `(?m)^forge-[a-z0-9]{8} .* `+all.Workers[0].ID+` `, list)
	require.NoError(t, worker.Stop(t.Context(), takttest.Patience))
}

// A worker that keeps its key in its state directory says that its builds can read it.
func TestAWorkerWhoseBuildsCanReadItsKey(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	token, err := env.Client(c, "keys", "enroll")
	require.NoError(t, err, token)
	worker, err := env.Worker(c, "forge", "true", nil, "--enroll", token)
	require.NoError(t, err)
	t.Cleanup(func() { env.LogOnFailure("forge", worker) })
	var said string
	takttest.Eventually(t, "it reports", func() bool {
		all, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
		require.NoError(t, err)
		if len(all.Workers) == 0 || all.Workers[0].Diagnostics == nil {
			return false
		}
		said = all.Workers[0].Diagnostics.Message
		return true
	})
	require.Contains(t, said, api.KeyExposed+": "+runner.MendKey[:40]) // lists cut it off
	found, _ := env.Client(c, "doctor", "--url", c.URL, "--poll-wait", "1s")
	require.Contains(t, found, "forge: "+api.KeyExposed)
	require.NoError(t, worker.Stop(t.Context(), takttest.Patience))
}
