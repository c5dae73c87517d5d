package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// A controller that was taken for dead writes nothing any more, nor does a worker whose
// repository was given to another.
func TestAnEarlierRunOfADeploymentWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, d := t.Context(), postgres.NewDeployments(b.DB)
	must(d.Create(ctx, store.Deployment{ID: "d", CredentialID: []byte("x")}))(t)
	claim := func(owner string, lease time.Duration) store.DeploymentClaim {
		claims := must(d.Claim(ctx, owner, lease, nil, 10))(t)
		require.Len(t, claims, 1)
		return claims[0]
	}
	first := claim("a", time.Microsecond)
	require.NoError(t, d.Plan(ctx, first, []store.DeploymentRepo{{Name: "r", Target: "r"}}, 0))
	early := must(d.Begin(ctx, first, "r"))(t)
	second := claim("b", time.Minute)
	late := must(d.Begin(ctx, second, "r"))(t)

	done := store.RepoChange{Step: store.RepoDone}
	_, begun := d.Begin(ctx, first, "r")
	_, finished := d.Finish(ctx, first)
	for what, err := range map[string]error{
		"plan": d.Plan(ctx, first, nil, 0), "begin": begun, "step": d.Step(ctx, first, "r", late.Run, done), "lose": d.Lose(ctx, first, "r", "lost"),
		"finish": finished, "abandon": d.Abandon(ctx, first, "gone"), "an earlier worker's step": d.Step(ctx, second, "r", early.Run, done),
	} {
		require.Equal(t, store.StaleAttempt, store.CodeOf(err), what)
	}
	require.NoError(t, d.Step(ctx, second, "r", late.Run, done))
	require.Zero(t, must(d.Finish(ctx, second))(t))
}
