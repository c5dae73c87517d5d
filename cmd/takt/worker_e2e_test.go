package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/client"
	"takt/store"
)

// A worker that is killed while it waits is back with its token, and gets a build without
// registering.
func TestKilledWorkerComesBackWithItsToken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	const name, command = "forge", `cp order.txt "$TAKT_OUTPUT"`
	session := filepath.Join(s.WorkerState(name), "session")
	registered := func() string {
		list, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
		require.NoError(t, err)
		if len(list.Workers) != 1 || list.Workers[0].Diagnostics == nil {
			return ""
		}
		return list.Workers[0].ID
	}
	first := s.worker(c, name, command)
	eventually(t, "it registers", func() bool { return registered() != "" })
	id := registered()
	first.Kill()
	require.FileExists(t, session)

	second := s.worker(c, name, command)
	build := submit(t, c, zipOf(t, map[string]string{"order.txt": "x"}))
	eventually(t, "the build completes", func() bool { return status(t, c, build).Status == string(store.Completed) })
	require.Contains(t, second.Output(), "resumed: the session of before is used")
	require.NotContains(t, second.Output(), "registered\"")
	require.Equal(t, id, registered())
	require.NoError(t, second.Stop(t.Context(), patience))
	require.NoFileExists(t, session)
}
