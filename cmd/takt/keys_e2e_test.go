package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// takt runs a client command and returns what it prints.
func (s *site) takt(c *process.Controller, args ...string) (string, error) {
	s.t.Helper()
	root := newRootIn(environment(env("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey, "TAKT_ADMIN_KEY", c.AdminKey)))
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
