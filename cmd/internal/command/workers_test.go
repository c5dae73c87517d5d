package command_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// worker registers a worker past the command line.
func (d *terminal) worker(t *testing.T, name string) string {
	t.Helper()
	c, err := client.New(client.Config{BaseURL: d.URL, APIKey: controllertest.APIKey})
	require.NoError(t, err)
	defer c.CloseIdle()
	w, err := c.Register(t.Context(), api.Register{Name: name, Capabilities: []byte(`{}`)})
	require.NoError(t, err)
	return w.ID
}

func TestWorkersCommand(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	one, two := d.worker(t, "Mac \x1b[31mmini"), d.worker(t, "Linux")
	build := d.Submit("ios", nil, nil)
	d.Edit(build, func(b *controllertest.Build) { b.State, b.WorkerID = store.Building, one })

	for _, args := range [][]string{{"workers"}, {"workers", "list"}} {
		out := d.ok(t, args...)
		require.Contains(t, out, build)
		require.Contains(t, out, two)
		require.Contains(t, out, "42%")
		require.NotContains(t, out, "\x1b")
	}
	require.NotContains(t, d.ok(t, "workers", "list", "--status", "idle"), one)
	require.Equal(t, one+" building, draining\n", d.ok(t, "workers", "drain", one))
	require.Contains(t, d.ok(t, "workers", "show", one), "building, draining")
	require.Equal(t, one+" building\n", d.ok(t, "workers", "resume", one))
	var shown struct {
		Builds []string `json:"builds"`
	}
	require.NoError(t, json.Unmarshal([]byte(d.ok(t, "workers", "show", one, "--json")), &shown))
	require.Equal(t, []string{build}, shown.Builds)
	var list []map[string]any
	require.NoError(t, json.Unmarshal([]byte(d.ok(t, "workers", "--json")), &list))
	require.Len(t, list, 2)

	d.Quarantine(two, "3 of the last 10 attempts ended by this worker's own fault")
	for _, args := range [][]string{{"workers"}, {"workers", "show", two}} {
		require.Regexp(t, `(?s)quarantined.*3 of the last 10 attempts ended by this worker's own fault`, d.ok(t, args...))
	}
	require.Equal(t, two+" idle\n", d.ok(t, "workers", "resume", two))
	d.Suspect(two, "all 14 failures of 1 h ran here")
	for _, args := range [][]string{{"workers"}, {"workers", "--status", "suspect"}, {"workers", "show", two}} {
		require.Regexp(t, `(?s)suspect.*all 14 failures of 1 h ran here`, d.ok(t, args...))
	}
	require.Equal(t, two+" idle\n", d.ok(t, "workers", "resume", two))
	require.Equal(t, two+" idle, draining\n", d.ok(t, "workers", "drain", "Linux"), "by its name")
	three := d.worker(t, "Linux")
	d.fails(t, 2, `2 workers are called "Linux": `+two+", "+three, "workers", "resume", "Linux")

	require.Equal(t, one+" deleted, builds pending again: 1\n", d.ok(t, "workers", "delete", one))
	require.Equal(t, store.Pending, d.Build(build).State)
	for _, args := range [][]string{{"show"}, {"drain"}, {"resume"}, {"delete"}} {
		d.fails(t, 3, "There is no worker", append(append([]string{"workers"}, args...), one)...)
		code, _, _ := d.takt(t.Context(), append([]string{"workers"}, args...)...)
		require.Equal(t, 2, code)
	}
}

func TestRetryCommand(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	old := strings.TrimSpace(d.ok(t, "submit", "--platform", "ios", d.source(t)))
	d.finish(old, store.Failed, "", "exit status 1")
	delete(d.env, "TAKT_API_KEY") // its token is kept
	fresh := strings.TrimSpace(d.ok(t, "retry", old))
	require.NotEqual(t, old, fresh)
	require.Equal(t, d.Build(old).Source, d.Build(fresh).Source)
	require.Contains(t, d.ok(t, "status", fresh), "pending", "the new one's token is kept, too")

	out := d.ok(t, "retry", old, "--json")
	var reply map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &reply))
	require.Equal(t, old, reply["original_build_id"])
	require.NotContains(t, out, "access_token")

	code, _, errs := d.takt(t.Context(), "retry", "unknown")
	require.Equal(t, 4, code, errs)
	d.Edit(old, func(b *controllertest.Build) { b.Source = nil })
	d.fails(t, 1, "no longer available", "retry", old)
}

func TestRetryWaitsForTheEnd(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	old := d.Submit("ios", []byte("zip"), nil)
	go func() {
		d.Await(t, "the second build is looked at", func() bool { return d.Requests("GET /api/builds/build-2/status") > 0 })
		d.finish("build-2", store.Failed, "", "exit status 65")
	}()
	code, out, errs := d.takt(t.Context(), "retry", "--wait", old)
	require.Equal(t, 6, code, errs)
	require.Contains(t, out, "exit status 65")
}
