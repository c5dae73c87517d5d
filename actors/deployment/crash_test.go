package deployment_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/deployment"
	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/http/githubtest"
	"takt/store"
)

// impatient gives up what hangs soon.
func impatient(c *deployment.Config) { c.Patience = 3 * time.Second }

func TestWhateverHappensToAWorkerFailsItsRepositoryAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		act  behaviour
		kill bool
		why  string
	}{
		"a refusal":           {fails, false, "the forge says no"},
		"a copy that differs": {loses, false, "differs from what was pushed"},
		"a defect":            {breaks, false, "was ended: a defect"},
		"a panic":             {panics, false, "has crashed"},
		"an exit":             {exits, false, "was ended"},
		"a hang":              {hangs, false, "did not come back"},
		"a kill":              {waits, true, "was ended: killed"},
		"a kill of a hanger":  {hangs, true, "was ended: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(5)
			f.act("r-0002", c.act)
			o := options{forge: f, config: impatient}
			if c.kill {
				o.config = nil
			}
			b := setup(t, o)
			id := b.deploy()
			if c.kill {
				b.eventually("it is under way, and the others are through", func() bool {
					return f.count("r-0002") == 1 && len(names(b.repos(id), store.RepoDone)) == 4
				})
				b.repo(id, "r-0002").Kill()
			}
			b.await(id, store.DeploymentDone)
			require.Equal(t, 4, b.addsUp(id, 5)[store.RepoDone])
			bad := b.repos(id)["r-0002"]
			require.Equal(t, store.RepoFailed, bad.Step)
			require.Contains(t, bad.Error, c.why)
			require.Equal(t, 1, f.count("r-0002"), "it is not tried again by itself")

			f.act("r-0002", succeeds)
			require.Equal(t, 1, must(b.d.Retry(t.Context(), id, "", githubtest.Token, false))(t))
			b.await(id, store.DeploymentDone)
			require.Equal(t, 5, b.addsUp(id, 5)[store.RepoDone])
			require.Equal(t, 2, b.repos(id)["r-0002"].Attempts)
			require.Equal(t, 1, f.count("r-0001"), "what was done is not done again")
		})
	}
}

func TestCrashedWorkerFailsTheRestAndIsDone(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*otp.Proc){
		"killed":  (*otp.Proc).Kill,
		"crashed": func(p *otp.Proc) { p.Exit(&otp.PanicError{Value: "a defect"}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(20)
			for _, r := range f.repos[5:] {
				f.act(r.Name, waits)
			}
			b := setup(t, options{forge: f})
			id := b.deploy(func(r *store.DeploymentRequest) { r.Concurrency = 4 })
			b.eventually("the rest is under way", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return len(f.copies) == 9
			})
			end(b.proc(id, "worker"))
			b.await(id, store.DeploymentDone)
			steps := b.addsUp(id, 20)
			require.Equal(t, 5, steps[store.RepoDone])
			require.Equal(t, 15, steps[store.RepoFailed])
			require.Contains(t, b.repos(id)["r-0010"].Error, "has crashed")
			require.Zero(t, f.under(), "its workers were stopped first")
		})
	}
}

func TestWhatIsEndedFromAboveIsResumed(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *fixture, id string){
		"the subsystem crashes":        func(b *fixture, _ string) { b.sys.Whereis("takt/deployments").Kill() },
		"the subsystem is restarted":   func(b *fixture, _ string) { b.restart("takt", "deployments") },
		"deployment_sup crashes":       func(b *fixture, _ string) { b.sys.Whereis("takt/deployments/deployment_sup").Kill() },
		"deployment_sup is restarted":  func(b *fixture, _ string) { b.restart("takt/deployments", "deployment_sup") },
		"repo_sup crashes":             func(b *fixture, _ string) { b.sys.Whereis("takt/deployments/repo_sup").Kill() },
		"repo_sup is restarted":        func(b *fixture, _ string) { b.restart("takt/deployments", "repo_sup") },
		"the resumer crashes":          func(b *fixture, _ string) { b.sys.Whereis("takt/deployments/resumer").Kill() },
		"its own supervisor crashes":   func(b *fixture, id string) { b.proc(id).Kill() },
		"its worker is terminated":     func(b *fixture, id string) { b.terminate(id, "worker") },
		"its supervisor is terminated": func(b *fixture, id string) { b.proc(id).Exit(otp.ErrShutdown) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(20)
			f.gate = make(chan struct{})
			b := setup(t, options{forge: f})
			id := b.deploy(func(r *store.DeploymentRequest) { r.Concurrency = 4 })
			b.eventually("it works", func() bool { return f.count("r-0003") == 1 })
			end(b, id)
			f.mu.Lock()
			close(f.gate)
			f.gate = nil
			f.mu.Unlock()
			d := b.await(id, store.DeploymentDone)
			require.Equal(t, 20, b.addsUp(id, 20)[store.RepoDone], "nothing is marked")
			require.LessOrEqual(t, d.Run, int64(3))
			require.Equal(t, 1, f.count("r-0019"), "what was not begun is done once")
		})
	}
}

func (b *fixture) restart(sup, id string) {
	b.t.Helper()
	must(otp.RestartRunning(b.t.Context(), b.sys.Ref(sup), id))(b.t)
}

func (b *fixture) terminate(id, part string) {
	b.t.Helper()
	require.NoError(b.t, otp.TerminateChild(b.t.Context(), b.proc(id), part))
}

func TestPauseResumeAndCancel(t *testing.T) {
	t.Parallel()
	f := newFake(10)
	f.gate = make(chan struct{})
	b := setup(t, options{forge: f})
	ctx := t.Context()
	id := b.deploy(func(r *store.DeploymentRequest) { r.Concurrency = 2 })
	b.eventually("it works", func() bool { return f.count("r-0000") == 1 && f.count("r-0001") == 1 })

	require.NoError(t, b.d.Pause(ctx, id, false))
	b.eventually("its actors are gone", func() bool { return b.proc(id) == nil })
	require.Equal(t, store.DeploymentPaused, b.find(id).State)
	require.NotNil(t, b.find(id).Credential)
	require.Equal(t, store.Conflict, store.CodeOf(b.d.Pause(ctx, id, false)))

	require.NoError(t, b.d.Resume(ctx, id, false))
	b.eventually("it goes on where it was", func() bool { return f.count("r-0000") == 2 && f.count("r-0001") == 2 })
	require.Equal(t, store.Conflict, store.CodeOf(b.d.Resume(ctx, id, false)))

	begun := time.Now()
	require.NoError(t, b.d.Cancel(ctx, id, false))
	d := b.await(id, store.DeploymentCancelled)
	require.Less(t, time.Since(begun), 10*time.Second)
	require.Nil(t, d.Credential)
	require.Equal(t, 10, b.addsUp(id, 10)[store.RepoSkipped])
	require.Equal(t, "Cancelled while pushing", b.repos(id)["r-0000"].Error)
	require.Equal(t, store.Conflict, store.CodeOf(b.d.Cancel(ctx, id, false)))

	close(f.gate)
	n := must(b.d.Retry(ctx, id, "r-0007", githubtest.Token, false))(t)
	require.Equal(t, 1, n)
	b.await(id, store.DeploymentDone)
	require.Equal(t, []string{"r-0007"}, names(b.repos(id), store.RepoDone))
	n = must(b.d.Retry(ctx, id, "", githubtest.Token, false))(t)
	require.Equal(t, 9, n)
	b.await(id, store.DeploymentDone)
	require.Equal(t, 10, b.addsUp(id, 10)[store.RepoDone])
	_, err := b.d.Retry(ctx, id, "", githubtest.Token, false)
	require.Equal(t, store.Conflict, store.CodeOf(err))
	_, err = b.d.Retry(ctx, "nobody", "", githubtest.Token, false)
	require.Equal(t, store.NotFound, store.CodeOf(err))
}

func TestRetryWhileItRuns(t *testing.T) {
	t.Parallel()
	f := newFake(3)
	f.act("r-0000", fails)
	f.act("r-0001", waits)
	b := setup(t, options{forge: f})
	id := b.deploy()
	b.eventually("one has failed", func() bool { return b.repos(id)["r-0000"].Step == store.RepoFailed })
	f.act("r-0000", succeeds)
	must(b.d.Retry(t.Context(), id, "r-0000", "", false))(t)
	b.eventually("it is tried again", func() bool { return b.repos(id)["r-0000"].Step == store.RepoDone })
	require.Equal(t, int64(1), b.find(id).Run, "by the same run")
	require.NoError(t, b.d.Cancel(t.Context(), id, false))
	b.await(id, store.DeploymentCancelled)
}

func TestConcurrencyIsBounded(t *testing.T) {
	t.Parallel()
	f := newFake(40)
	f.gate = make(chan struct{})
	b := setup(t, options{forge: f})
	id := b.deploy(func(r *store.DeploymentRequest) { r.Concurrency = 3 })
	b.eventually("three are under way", func() bool { return f.under() == 3 })
	close(f.gate)
	b.await(id, store.DeploymentDone)
	require.Equal(t, 3, f.at)
}

// absent is a database that may be away.
type absent struct {
	deployment.Store
	away *atomic.Bool
}

func (s absent) Claim(ctx context.Context, owner string, lease time.Duration, has []string, limit int) ([]store.DeploymentClaim, error) {
	if s.away.Load() {
		return nil, store.NewUnavailable("away", nil)
	}
	return s.Store.Claim(ctx, owner, lease, has, limit)
}

func TestTheEndOfAnOutageIsNoticedBeforeTheNextLook(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	away.Store(true)
	b := setup(t, options{
		config: func(c *deployment.Config) { c.Look = time.Hour },
		store:  func(s deployment.Store) deployment.Store { return absent{s, &away} },
	})
	is := func(s otp.Status) func() bool {
		return func() bool {
			children := b.sys.Tree(false)[0].Children[0].Children
			return children[len(children)-1].Status == s
		}
	}
	b.eventually("the resumer waits", is(otp.StatusSuspended))
	away.Store(false)
	b.bus.Publish(pubsub.ListenerResumed, nil)
	b.eventually("it works", is(otp.StatusRunning))
}
