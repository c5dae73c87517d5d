package serving

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
)

// A root supervisor that is stuck in a child's start ends the feeding until it goes on.
func TestAStuckRootDoesNotFeedTheWatchdog(t *testing.T) {
	t.Parallel()
	sys := otp.New(otp.Options{Logger: zerolog.Nop()})
	defer sys.Shutdown(context.WithoutCancel(t.Context()))
	root, err := sys.StartRoot(t.Context(), "root", otp.SupSpec{})
	require.NoError(t, err)
	var fed atomic.Int64
	stop := feed(t.Context(), 150*time.Millisecond, func(ctx context.Context) bool {
		_, err := otp.CountChildren(ctx, root)
		return err == nil
	}, func() { fed.Add(1) })
	defer stop()
	goesOn := func() {
		t.Helper()
		before := fed.Load()
		require.Eventually(t, func() bool { return fed.Load() > before+3 }, time.Minute, 10*time.Millisecond, "the watchdog is fed")
	}
	goesOn()

	stuck, held := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release() // Shutdown waits for the start
	started := make(chan error, 1)
	go func() {
		_, err := otp.StartChild(t.Context(), root, otp.ChildSpec{ID: "slow", Server: func() otp.Server { return slowStart{stuck: stuck, held: held} }})
		started <- err
	}()
	<-stuck
	<-time.After(100 * time.Millisecond) // a question that was asked before
	before := fed.Load()
	<-time.After(500 * time.Millisecond)
	require.Equal(t, before, fed.Load())
	release()
	require.NoError(t, <-started)
	goesOn()
}

// slowStart is a process whose start takes until held is closed.
type slowStart struct {
	otp.Base
	stuck, held chan struct{}
}

func (s slowStart) Init(*otp.Ctx) error {
	close(s.stuck)
	<-s.held
	return nil
}
