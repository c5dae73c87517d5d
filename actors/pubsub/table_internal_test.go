package pubsub

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
)

// listener is a process that listens.
type listener struct {
	otp.Base
	bus Bus
}

func (h *listener) Init(c *otp.Ctx) error {
	h.bus.Listen(c, QueueUpdated, JobAvailable)
	return nil
}

// Who has ended must not stay in the table, or it grows with each restart.
func TestProcessesThatHaveEndedAreRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bus, sys := New(), otp.New(otp.Options{Logger: zerolog.Nop()})
		defer sys.Shutdown(context.WithoutCancel(t.Context()))
		start := func(name string) *otp.Proc {
			p, err := sys.Start(name, func() otp.Server { return &listener{bus: bus} })
			require.NoError(t, err)
			return p
		}
		size := func() int {
			synctest.Wait()
			bus.table.mu.RLock()
			defer bus.table.mu.RUnlock()
			return len(bus.table.topics[QueueUpdated]) + len(bus.table.topics[JobAvailable])
		}
		early, brief := start("early"), start("brief") // before the bus's own process
		brief.Exit(nil)
		_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{bus.Spec()}})
		require.NoError(t, err)
		require.Equal(t, 2, size(), "who had ended before it came")

		late := start("late")
		require.Equal(t, 4, size())
		late.Exit(errors.New("crashed on purpose"))
		require.Equal(t, 2, size())

		sys.Whereis("takt/pubsub").Exit(errors.New("crashed on purpose"))
		require.Equal(t, 2, size())
		early.Kill()
		require.Zero(t, size())
		require.Empty(t, bus.table.topics)
	})
}
