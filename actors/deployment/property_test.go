package deployment_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/deployment"
	"takt/http/githubtest"
	"takt/store"
)

// counting counts in the database itself how often anything came to its end.
const counting = `
CREATE TABLE ends (id text, name text);
CREATE FUNCTION count_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF TG_TABLE_NAME = 'deployments' THEN INSERT INTO ends VALUES (NEW.id, '');
	ELSE INSERT INTO ends VALUES (NEW.deployment_id, NEW.name); END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER ended AFTER UPDATE OF state ON deployments FOR EACH ROW
	WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL) EXECUTE FUNCTION count_end();
CREATE TRIGGER ended AFTER UPDATE OF step ON deployment_repos FOR EACH ROW
	WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL) EXECUTE FUNCTION count_end();`

// Whatever happens to whom in whatever order: success + failure + skipped =
// planned, each repository comes to its end once, and so does the deployment.
func TestCountsAddUpOverRandomSchedules(t *testing.T) {
	t.Parallel()
	const schedules = 24
	f := newFake(0)
	b := setup(t, options{forge: f, config: func(c *deployment.Config) { c.Patience, c.MaxActive = 3*time.Second, 100 }})
	must(b.data.Pool.Exec(t.Context(), counting))(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	type schedule struct {
		id, org string
		n, good int
		marked  bool // something was done to it that marks repositories as failed
	}
	all := make([]*schedule, schedules)
	for i := range all {
		s := &schedule{org: fmt.Sprintf("org%d", i), n: rnd.IntN(12)}
		list := repos(s.org, s.n)
		for _, r := range list {
			act := [...]behaviour{succeeds, succeeds, succeeds, succeeds, fails, panics, exits, hangs, breaks}[rnd.IntN(9)]
			if act == succeeds {
				s.good++
			}
			f.act(r.Name, act)
		}
		f.mu.Lock()
		f.orgs[s.org] = list
		f.mu.Unlock()
		s.id = b.deploy(func(r *store.DeploymentRequest) { r.SourceOrg, r.Concurrency = s.org, 1+rnd.IntN(8) })
		all[i] = s
	}
	for _, i := range rnd.Perm(schedules) {
		all[i].marked = b.disturb(rnd, all[i].id, all[i].org, all[i].n)
	}
	for i, s := range all {
		b.eventually("it has ended", func() bool { return b.find(s.id).State.Final() && b.proc(s.id) == nil })
		if b.find(s.id).State == store.DeploymentFailed {
			require.True(t, s.marked, "its worker was killed before it had a plan")
			s.n = 0
		}
		steps := b.addsUp(s.id, s.n)
		if !s.marked {
			require.Equal(t, s.good, steps[store.RepoDone], "schedule %d", i)
		}
		var most, ends int
		require.NoError(t, b.data.Pool.QueryRow(t.Context(), `SELECT max(n), sum(n) FROM (SELECT count(*) AS n FROM ends WHERE id = $1 GROUP BY name) e`, s.id).Scan(&most, &ends))
		require.Equal(t, 1, most, "schedule %d: everything ends once", i)
		require.Equal(t, s.n+1, ends, "schedule %d", i)
	}
}

// disturb kills something at some moment, or nothing. It reports whether that
// marks repositories as failed.
func (b *fixture) disturb(rnd *rand.Rand, id, prefix string, n int) (marks bool) {
	b.t.Helper()
	what := rnd.IntN(7)
	after := time.Duration(rnd.IntN(30)) * time.Millisecond
	select {
	case <-time.After(after):
	case <-b.t.Context().Done():
	}
	switch what {
	case 0:
		kill(b, id, "worker")
		return true
	case 1:
		kill(b, id, "state")
	case 2:
		kill(b, id)
	case 3:
		if p := b.sys.Whereis("takt/deployments/repo_sup"); p != nil {
			p.Kill()
		}
	case 4:
		if p := b.repo(id, fmt.Sprintf("%s-%04d", prefix, rnd.IntN(n+1))); p != nil {
			p.Kill()
			return true
		}
	case 5:
		kill(b, id, "state")
		kill(b, id, "worker")
		return true
	}
	return false
}

func kill(b *fixture, id string, part ...string) {
	if p := b.proc(id, part...); p != nil {
		p.Kill()
	}
}

// The database is away in the middle of it, twice: nothing fails.
func TestDatabaseThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFake(20)
	f.gate = make(chan struct{})
	b := setup(t, options{forge: f})
	id := must(b.d.Start(t.Context(), request(), githubtest.Token, false))(t)
	b.eventually("it works", func() bool { return f.count("r-0007") == 1 })
	b.data.DB.Drop(context.Canceled)
	close(f.gate)
	b.eventually("it waits", func() bool { sup := b.sys.Tree(true); return len(sup) == 1 && f.under() == 0 })
	b.data.DB.Use(b.data.Pool)
	b.await(id.ID, store.DeploymentDone)
	require.Equal(t, 20, b.addsUp(id.ID, 20)[store.RepoDone])
}
