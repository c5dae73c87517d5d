package pubsub

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
)

// Publishers skip topics that are not in state.heard, so it has to be right at
// the moment in which Subscribe returns.
func TestPublishersKnowWhichTopicsAreHeard(t *testing.T) {
	t.Parallel()
	sys := otp.New(otp.Options{Logger: zerolog.Nop()})
	t.Cleanup(func() { sys.Shutdown(context.WithoutCancel(t.Context())) })
	bus := New()
	_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{bus.Spec()}})
	require.NoError(t, err)
	heard := func() []string { return slices.Sorted(maps.Keys(*bus.state.heard.Load())) }

	require.Empty(t, heard())
	one, err := bus.Subscribe(t.Context(), QueueUpdated, JobAvailable)
	require.NoError(t, err)
	require.Equal(t, []string{JobAvailable, QueueUpdated}, heard())
	two, err := bus.Subscribe(t.Context(), JobAvailable)
	require.NoError(t, err)
	one.Close()
	require.Eventually(t, func() bool { return slices.Equal([]string{JobAvailable}, heard()) }, time.Minute, time.Millisecond)
	two.Close()
	require.Eventually(t, func() bool { return len(heard()) == 0 }, time.Minute, time.Millisecond)
}
