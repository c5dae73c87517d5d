package install

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// beforeInputs is a commit between release 0.1.0 and this one: it has classes and labels, but no
// inputs.
const beforeInputs = "0e9fdba2"

// TestInstallOlderControllersKeepInputs runs controllers of both older kinds beside one of this
// release: a build with parameters goes to no worker that can't have them, whoever hands it out.
func TestInstallOlderControllersKeepInputs(t *testing.T) {
	installTest(t)
	n, dir := takttest.NewPostgres(t)
	require.NoError(t, n.Start("-c", "fsync=off", "-c", "max_connections=200"))
	t.Cleanup(n.Stop)
	takttest.Answer(t, n, "SELECT 'up'")
	env := takttest.NewEnv(t)
	now, files := env.Takt, filepath.Join(env.Dir, "files")
	require.NoError(t, os.MkdirAll(files, 0o700))
	start := func(name, program string, settings ...string) *process.Controller {
		require.NoError(t, os.MkdirAll(filepath.Join(env.Dir, name), 0o700))
		require.NoError(t, os.Symlink(files, filepath.Join(env.Dir, name, "files")))
		env.Takt = program
		c, err := env.Controller(t.Context(), name, slices.Concat(takttest.SharedKeys(), []string{"TAKT_DATABASE_URL=" + n.URL()}, settings)...)
		require.NoError(t, err)
		t.Cleanup(func() {
			if c.Alive() {
				require.NoError(t, c.Stop(context.WithoutCancel(t.Context()), takttest.Patience))
			}
			env.LogOnFailure(name, c.Process)
		})
		return c
	}
	// In this order, because none starts on the database of a later one.
	first := start("release-010", buildCommit(t, dir, release010))
	second := start("before-inputs", buildCommit(t, dir, beforeInputs), "TAKT_UNMATCHED_TTL=2s", "TAKT_CHECK_INTERVAL=1s", "TAKT_BUILD_TIMEOUT=15s", "TAKT_WORKER_TIMEOUT=15s") // it looks for silence, and for workers, when it has been ready for so long
	ours := start("ours", now, "TAKT_CHECK_INTERVAL=1h")
	all := []*process.Controller{first, second, ours}

	again := func(f func(context.Context) error) { // a busy machine's database may take too long
		t.Helper()
		retry := client.Retry{Temporary: client.Temporary}
		retry.Min, retry.Max = 100*time.Millisecond, 2*time.Second
		require.NoError(t, retry.Do(t.Context(), f))
	}
	submit := func(s client.Submit) (id string) {
		t.Helper()
		s.Platform, s.Source, s.IdempotencyKey = store.IOS, client.Bytes(takttest.Zip(t, map[string]string{"a": "b"})), client.NewIdempotencyKey()
		again(func(ctx context.Context) error {
			b, err := ours.Client.Submit(ctx, s)
			id = b.ID
			return err
		})
		return id
	}
	register := func(c *process.Controller, capabilities string) (r api.Registered) {
		t.Helper()
		again(func(ctx context.Context) (err error) {
			r, err = c.Client.Register(ctx, api.Register{Name: "w", Capabilities: []byte(capabilities)})
			return err
		})
		return r
	}
	polls := func(c *process.Controller, w *api.Registered) (job *api.Job) {
		t.Helper()
		again(func(ctx context.Context) error {
			r, err := c.Client.Poll(ctx, client.Poll{Token: w.AccessToken})
			if err == nil {
				w.AccessToken, job = r.AccessToken, r.Job
			}
			return err
		})
		return job
	}
	gets := func(at *process.Controller, w *api.Registered, id string) { // the controller learns of the build within moments
		t.Helper()
		var job *api.Job
		takttest.Eventually(t, "the worker gets the build", func() bool { job = polls(at, w); return job != nil })
		require.Equal(t, id, job.ID)
	}
	state := func(id string) string { return takttest.Answer(t, n, "SELECT state FROM builds WHERE id = '"+id+"'") }
	const features = `"features":["env","exit","timeout"],"max_timeout":14400`
	params := client.Submit{Inputs: store.Inputs{Params: store.Params{"BUILD_NUMBER": "42"}}}

	known := register(ours, `{`+features+`}`)
	takttest.Call(t, ours, api.DrainWorker, api.WorkerOrder{ID: api.WorkerID(known.ID)}) // it could take the build, and gets nothing for now
	once := submit(client.Submit{Inputs: store.Inputs{MaxAttempts: 1}})
	silent := register(second, `{}`)
	gets(second, &silent, once) // and it is not heard of again
	build := submit(params)
	for _, at := range all {
		for _, from := range all {
			old := register(from, `{}`)
			require.Nil(t, polls(at, &old))
			labelled := register(from, `{"labels":{"takt.env":"1"}}`)
			require.Nil(t, polls(at, &labelled), "a label that a worker sends is no feature")
			if from != ours {
				promising := register(from, `{"labels":{"takt.env":"1"},`+features+`}`)
				require.Nil(t, polls(at, &promising), "that controller would not have told it of inputs")
			}
		}
	}
	nobodys := submit(client.Submit{Require: "gpu"})
	takttest.Eventually(t, "a build that no worker can take fails", func() bool { return state(nobodys) == string(store.Failed) })
	require.Equal(t, string(store.Pending), state(build), "a worker could take this one")
	why, err := ours.Client.Why(t.Context(), build, client.BuildAuth{})
	require.NoError(t, err)
	require.False(t, why.Unmatched, why.Reason)

	for _, c := range []*process.Controller{first, second} {
		_, err := c.Client.Retry(t.Context(), build, client.BuildAuth{}, "", nil)
		var refused *client.Error
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 503, refused.Status, "%s: %v", c.URL, err)
	}
	require.Equal(t, "1", takttest.Answer(t, n, "SELECT count(*)::text FROM builds WHERE state = 'pending'"), "refused retries leave nothing")

	plains := []string{submit(client.Submit{}), submit(client.Submit{})}
	for _, id := range plains { // they are behind it
		old := register(first, `{}`)
		gets(first, &old, id)
	}
	require.Equal(t, string(store.Pending), state(build))

	able := register(ours, `{`+features+`}`)
	for _, at := range []*process.Controller{first, second} {
		require.Nil(t, polls(at, &able), "their jobs would not say that the build has inputs")
	}
	require.Equal(t, string(store.Pending), state(build))
	lost := able
	require.Equal(t, build, polls(ours, &lost).ID)
	for _, at := range []*process.Controller{first, second} { // the reply was lost
		for _, p := range []client.Poll{{Token: able.AccessToken}, {Token: able.AccessToken, Active: []string{}}, {WorkerID: able.ID}} {
			again(func(ctx context.Context) error {
				r, err := at.Client.Poll(ctx, p)
				require.Nil(t, r.Job, "its job would not say that the build has inputs")
				return err
			})
		}
	}
	job := polls(ours, &able)
	require.Equal(t, build, job.ID)
	require.Equal(t, 1, job.Attempt)
	require.NotNil(t, job.InputsURL)
	inputs := takttest.Call(t, ours, api.FetchInputs, api.Holding{ID: api.BuildID(build), WorkerID: api.HolderID(able.ID)})
	require.Equal(t, map[string]string{"BUILD_NUMBER": "42"}, inputs.Params)
	_, err = ours.Client.Upload(t.Context(), client.Upload{Held: client.Held{BuildID: build, WorkerID: able.ID}, ErrorMessage: "enough"})
	require.NoError(t, err)

	plain := submit(client.Submit{Require: "pool=a"})
	labelled := register(second, `{"labels":{"pool":"a"}}`)
	gets(second, &labelled, plain) // builds without inputs go everywhere
	takttest.Eventually(t, "the silent worker loses the build", func() bool { return state(once) != string(store.Building) && state(once) != string(store.Assigned) })
	require.Equal(t, string(store.Failed), state(once), "it has one attempt")
}
