package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/process"
	"takt/cmd/internal/runner"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// takt runs a client command and returns what it prints.
func (s *site) takt(c *process.Controller, args ...string) (string, error) {
	s.t.Helper()
	root := command.New(cli.Environment(env("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey, "TAKT_ADMIN_KEY", c.AdminKey)))
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(s.t.Context())
	return strings.TrimSpace(out.String()), err
}

// A submitter and a worker with keys of their own, until these are revoked.
func TestKeysOfASubmitterAndOfAWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	token, err := s.takt(c, "keys", "enroll")
	require.NoError(t, err, token)
	const command = `cp order.txt "$TAKT_OUTPUT"`
	forge := func() *process.Process {
		p, err := s.Worker(c, "forge", command, nil, "--heartbeat", "500ms", "--enroll", token)
		require.NoError(t, err)
		t.Cleanup(func() { s.tellOf("forge", p) })
		return p
	}
	worker := forge()
	kept := filepath.Join(s.WorkerState("forge"), "key")
	eventually(t, "it has its key", func() bool { _, err := os.Stat(kept); return err == nil })
	info, err := os.Stat(kept)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode())

	key, err := s.takt(c, "keys", "create", "ci", "--scope", "submit", "--expires", "90d")
	require.NoError(t, err, key)
	ci, err := client.New(client.Config{BaseURL: c.URL, APIKey: key})
	require.NoError(t, err)
	sent := client.Submit{Platform: store.Android, Source: client.Bytes(zipOf(t, map[string]string{"order.txt": "x"}))}
	build, err := ci.Submit(t.Context(), sent)
	require.NoError(t, err)
	eventually(t, "the build completes", func() bool {
		now, err := ci.Status(t.Context(), build.ID, client.BuildAuth{})
		require.NoError(t, err)
		require.Equal(t, "ci", now.Submitter)
		return now.Status == string(store.Completed)
	})
	require.NoError(t, worker.Stop(t.Context(), patience))
	again := forge() // as a unit file would have it
	build, err = ci.Submit(t.Context(), sent)
	require.NoError(t, err)
	eventually(t, "with the key that it kept", func() bool { return status(t, c, build.ID).Status == string(store.Completed) })
	require.NoError(t, again.Stop(t.Context(), patience))

	list, err := s.takt(c, "keys", "list")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^ci +active +submit `, list)
	require.Regexp(t, `(?m)^forge-[a-z0-9]{8} +active +worker `, list)
	require.Regexp(t, `(?m)^enroll-\w+ +revoked +enroll `, list)
	said, err := s.takt(c, "keys", "revoke", "ci", "--reason", "test")
	require.NoError(t, err)
	require.Equal(t, "revoked", said)
	_, err = client.Call(t.Context(), ci, api.ShowBuild, api.BuildPath{ID: api.BuildID(build.ID)})
	require.Equal(t, store.InvalidAPIKey, store.CodeOf(err))
}

// looksForKeys is a build that prints what it can read of its worker.
const looksForKeys = `{ env; tr '\0' '\n' <"/proc/$PPID/environ"; cat "$STATE"/*; } >"$TAKT_OUTPUT" 2>/dev/null || true`

// enrolls gives a worker a key in an environment file, and returns the key.
func (s *site) enrolls(c *process.Controller, file string) string {
	s.t.Helper()
	token, err := s.takt(c, "keys", "enroll")
	require.NoError(s.t, err, token)
	said, err := s.takt(c, "worker", "enroll", "--url", c.URL, "--name", "forge", "--env-file", file, token)
	require.NoError(s.t, err, said)
	require.Regexp(s.t, `key forge-[a-z0-9]{8} is in `+file, said)
	info, err := os.Stat(file)
	require.NoError(s.t, err)
	require.EqualValues(s.t, 0o600, info.Mode())
	text, err := os.ReadFile(file)
	require.NoError(s.t, err)
	_, err = s.takt(c, "worker", "enroll", "--env-file", file, token)
	require.Equal(s.t, store.InvalidAPIKey, store.CodeOf(err), "a token is good for one key")
	again, err := os.ReadFile(file)
	require.NoError(s.t, err)
	require.Equal(s.t, string(text), string(again), "nothing is lost when it fails")
	key := regexp.MustCompile(`(?m)^TAKT_API_KEY=(.*)$`).FindSubmatch(text)
	require.NotNil(s.t, key)
	return string(key[1])
}

// A worker with its key in the environment file of its unit: no build can read the key.
func TestWorkerEnroll(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	file := filepath.Join(t.TempDir(), "worker.env")
	require.NoError(t, os.WriteFile(file, []byte("# comment\nTAKT_URL=http://127.0.0.1:1\nTAKT_API_KEY=\nWORKER_FLAGS=\"-c 2\"\n"), 0o644))
	key := s.enrolls(c, file)
	require.Regexp(t, `^takt_`, key)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "# comment\nTAKT_URL="+c.URL+"\nTAKT_API_KEY="+key+"\nWORKER_FLAGS=\"-c 2\"\n", string(text))

	worker, err := s.Worker(c, "forge", looksForKeys, []string{"TAKT_API_KEY=" + key}, "--env", "STATE="+s.WorkerState("forge"))
	require.NoError(t, err)
	t.Cleanup(func() { s.tellOf("forge", worker) })
	build, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.Android, Source: client.Bytes(zipOf(t, map[string]string{"order.txt": "x"}))})
	require.NoError(t, err)
	eventually(t, "the build completes", func() bool { return status(t, c, build.ID).Status == string(store.Completed) })
	out := filepath.Join(t.TempDir(), "out")
	said, err := s.takt(c, "download", build.ID, "--output", out)
	require.NoError(t, err, said)
	seen, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(seen), "TAKT_BUILD_ID=")
	require.NotContains(t, string(seen), key)
	list, err := s.takt(c, "keys", "list")
	require.NoError(t, err)
	all, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
	require.NoError(t, err)
	require.Regexp(t, `(?m)^forge-[a-z0-9]{8} .* `+all.Workers[0].ID+` `, list)
	require.NoError(t, worker.Stop(t.Context(), patience))
}

// A worker that keeps its key in its state directory says that its builds can read it.
func TestAWorkerWhoseBuildsCanReadItsKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	token, err := s.takt(c, "keys", "enroll")
	require.NoError(t, err, token)
	worker, err := s.Worker(c, "forge", "true", nil, "--enroll", token)
	require.NoError(t, err)
	t.Cleanup(func() { s.tellOf("forge", worker) })
	var said string
	eventually(t, "it reports", func() bool {
		all, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
		require.NoError(t, err)
		if len(all.Workers) == 0 || all.Workers[0].Diagnostics == nil {
			return false
		}
		said = all.Workers[0].Diagnostics.Message
		return true
	})
	require.Contains(t, said, api.KeyExposed+": "+runner.MendKey[:40]) // lists cut it off
	found, _ := s.takt(c, "doctor", "--url", c.URL, "--poll-wait", "1s")
	require.Contains(t, found, "forge: "+api.KeyExposed)
	require.NoError(t, worker.Stop(t.Context(), patience))
}
