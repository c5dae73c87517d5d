package deployment_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/deployment"
	"takt/actors/deployment/forge"
	"takt/actors/otp"
	"takt/actors/otp/otptest"
	"takt/actors/pubsub"
	"takt/http/githubtest"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

// fixture is the subsystem over a real database, in a tree of its own.
type fixture struct {
	t     *testing.T
	db    *postgres.Deployments
	data  *storetest.Database
	forge *githubtest.Forge // nil with an own Forge
	work  string
	sys   *otp.System
	d     *deployment.Deployments
	bus   pubsub.Bus
	root  *otp.Proc
	logs  *bytes.Buffer
}

type options struct {
	forge  deployment.Forge // nil: the stand-in
	config func(*deployment.Config)
	store  func(deployment.Store) deployment.Store
}

func setup(t *testing.T, o options) *fixture {
	t.Helper()
	data := storetest.New(t)
	b := &fixture{t: t, data: data, db: postgres.NewDeployments(data.DB), bus: pubsub.New(), logs: &bytes.Buffer{}}
	if o.forge == nil {
		o.forge = b.standIn()
	}
	b.start(o)
	return b
}

func (b *fixture) standIn() deployment.Forge {
	b.t.Helper()
	b.forge = githubtest.Start(b.t)
	b.work = filepath.Join(b.t.TempDir(), "work")
	g := must(forge.New(forge.Config{BaseURL: b.forge.URL, WorkDir: b.work, Environ: os.Environ(), Backoff: 10 * time.Millisecond}))(b.t)
	b.t.Cleanup(g.Close)
	return deployment.GitHub(g)
}

// start runs the subsystem as a child of a root called takt.
func (b *fixture) start(o options) {
	b.t.Helper()
	cfg := deployment.Config{Owner: "me", Keys: seal.NewRing(seal.Key{1}), Retry: 20 * time.Millisecond, Look: 50 * time.Millisecond}
	if o.config != nil {
		o.config(&cfg)
	}
	var db deployment.Store = b.db
	if o.store != nil {
		db = o.store(db)
	}
	b.sys = otptest.New(b.t, func(opts *otp.Options) { opts.Logger = zerolog.Nop() })
	if fake, ok := o.forge.(*fakeForge); ok {
		b.t.Cleanup(func() { // before the system is shut down, so that nothing is left
			close(fake.release)
			b.eventually("what hung has come back", func() bool { return b.sys.Leaked() == 0 })
		})
	}
	b.d = deployment.New(b.sys, db, o.forge, b.bus, cfg)
	b.root = must(b.sys.StartRoot(b.t.Context(), "takt", otp.SupSpec{
		Intensity: 100, Children: []otp.ChildSpec{{ID: "deployments", Supervisor: func() otp.SupSpec {
			return otp.SupSpec{Intensity: 3, Period: 5 * time.Second, Children: []otp.ChildSpec{b.d.DeploymentSup(), b.d.RepoSup(), b.d.Resumer()}}
		}}},
	}))(b.t)
}

func request(edit ...func(*store.DeploymentRequest)) store.DeploymentRequest {
	r := store.DeploymentRequest{SourceOrg: "from", TargetOrg: "to"}
	for _, e := range edit {
		e(&r)
	}
	return r
}

func (b *fixture) deploy(edit ...func(*store.DeploymentRequest)) string {
	b.t.Helper()
	d := must(b.d.Start(b.t.Context(), request(edit...), githubtest.Token, false))(b.t)
	return d.ID
}

func (b *fixture) find(id string) store.Deployment {
	b.t.Helper()
	return must(b.db.Find(context.WithoutCancel(b.t.Context()), id))(b.t)
}

func (b *fixture) repos(id string) map[string]store.DeploymentRepo {
	b.t.Helper()
	rows := must(b.db.Repos(b.t.Context(), id, time.Time{}))(b.t)
	out := map[string]store.DeploymentRepo{}
	for _, r := range rows {
		out[r.Name] = r
	}
	return out
}

func (b *fixture) eventually(what string, cond func() bool) {
	b.t.Helper()
	require.Eventually(b.t, cond, githubtest.Patience, 5*time.Millisecond, what)
}

// await waits until a deployment is in a state, and its actors are gone if that
// is final.
func (b *fixture) await(id string, state store.DeploymentState) store.Deployment {
	b.t.Helper()
	b.eventually("deployment is "+string(state), func() bool { return b.find(id).State == state })
	if state.Final() {
		b.eventually("its actors are gone", func() bool { return b.proc(id) == nil })
	}
	return b.find(id)
}

// proc returns a process of a deployment: its supervisor, or the part below it.
func (b *fixture) proc(id string, part ...string) *otp.Proc {
	return b.sys.Whereis(filepath.Join(append([]string{"takt/deployments/deployment_sup", id}, part...)...))
}

func (b *fixture) repo(id, name string) *otp.Proc {
	return b.sys.Whereis("takt/deployments/repo_sup/" + id + ":" + name)
}

// same checks that a copy has its source's branches and tags, all of them.
func (b *fixture) same(name, target string) {
	b.t.Helper()
	require.Equal(b.t, githubtest.RefsOf(b.t, b.forge.Dir("from", name)), githubtest.RefsOf(b.t, b.forge.Dir("to", target)), name)
}

// addsUp checks promise P8 for a deployment that has ended.
func (b *fixture) addsUp(id string, total int) map[store.RepoStep]int {
	b.t.Helper()
	found := must(b.db.Progress(b.t.Context(), id))(b.t)
	p := found[id]
	require.Equal(b.t, total, p.Steps[store.RepoDone]+p.Steps[store.RepoFailed]+p.Steps[store.RepoSkipped], "%v", p.Steps)
	require.Zero(b.t, p.Left())
	return p.Steps
}

func names(m map[string]store.DeploymentRepo, step store.RepoStep) (out []string) {
	for name, r := range m {
		if r.Step == step {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
