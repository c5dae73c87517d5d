package throttle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/store/storetest"
)

// A start that is given up on at any moment leaves no client that runs; Stop never
// runs beside Start, which the race detector sees.
func TestAStartOfRiverThatIsGivenUpEndsItsClient(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	gone := errors.New("the actor ends")
	j := &Jobs{}
	started, givenUp := 0, 0
	for i := range 40 {
		client, err := j.newClient(db.Pool, zerolog.Nop())
		require.NoError(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		timer := time.AfterFunc(time.Duration(i)*250*time.Microsecond, func() { cancel(gone) })
		err = start(ctx, t.Context(), client)
		timer.Stop()
		if err == nil {
			started++
			require.NoError(t, client.StopAndCancel(t.Context()))
		} else {
			givenUp++
			require.ErrorIs(t, err, gone)
		}
		<-client.Stopped()
		cancel(nil)
	}
	require.Positive(t, givenUp)
	t.Logf("%d started, %d were given up", started, givenUp)
}
