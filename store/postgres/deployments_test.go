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
	_, err := d.Create(ctx, store.Deployment{ID: "d", CredentialID: []byte("x")})
	require.NoError(t, err)
	claim := func(owner string, lease time.Duration) store.DeploymentClaim {
		claims, err := d.Claim(ctx, owner, lease, nil, 10)
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0]
	}
	first := claim("a", time.Microsecond)
	require.NoError(t, d.Plan(ctx, first, []store.DeploymentRepo{{Name: "r", Target: "r"}}, 0))
	early, err := d.Begin(ctx, first, "r")
	require.NoError(t, err)
	second := claim("b", time.Minute)
	late, err := d.Begin(ctx, second, "r")
	require.NoError(t, err)

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
	left, err := d.Finish(ctx, second)
	require.NoError(t, err)
	require.Zero(t, left)
}
