package recovery

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store/storetest/needs"
)

// notifyHandOuts makes the database notify of each hand-out once it is committed.
const notifyHandOuts = `
CREATE FUNCTION notify_hand_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('handed', NEW.id); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER notify_hand_out AFTER UPDATE ON builds DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW WHEN (OLD.state = 'pending' AND NEW.state = 'assigned') EXECUTE FUNCTION notify_hand_out();
LISTEN handed`

// A controller is killed right after it has committed hand-outs, and nobody reads
// its replies. Each worker shows the token that it has, to the next incarnation or to
// another controller, and gets its build.
func TestKilledBetweenCommitAndReply(t *testing.T) {
	t.Parallel()
	kills, fleet := needs.Repeat(6, 50), 4
	env := takttest.NewEnv(t)
	owner := env.StartController("owner", "TAKT_QUEUE_LIMIT=2000")
	conn, err := pgx.Connect(t.Context(), owner.DatabaseURL())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	_, err = conn.Exec(t.Context(), notifyHandOuts)
	require.NoError(t, err)
	start := func() *process.Controller {
		return env.StartController("victim", owner.Shared()...)
	}
	victim := start()
	workers := make([]*takttest.Worker, fleet)
	for i := range workers {
		workers[i] = takttest.Register(t, owner, 1+i%2)
	}
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	for round := range kills {
		for range fleet {
			takttest.Submit(t, owner, source)
		}
		var asked []net.Conn
		for _, w := range workers {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", victim.Address)
			require.NoError(t, err)
			_, err = fmt.Fprintf(c, "GET /api/workers/poll?wait=60 HTTP/1.1\r\nHost: takt\r\nX-API-Key: %s\r\nX-Worker-Token: %s\r\n\r\n", owner.APIKey, w.Token)
			require.NoError(t, err)
			asked = append(asked, c)
		}
		handed := map[string]bool{}
		for len(handed) < fleet {
			ctx, cancel := context.WithTimeoutCause(t.Context(), takttest.Patience, fmt.Errorf("round %d: %d of %d handed out", round, len(handed), fleet))
			n, err := conn.WaitForNotification(ctx)
			require.NoError(t, err, "%v", context.Cause(ctx))
			cancel()
			handed[n.Payload] = true
		}
		victim.Kill()
		for _, c := range asked {
			require.NoError(t, c.Close()) // unread
		}
		victim = start()
		next := []*process.Controller{victim, owner}[round%2]
		for _, w := range workers {
			reply, err := next.Client.Poll(t.Context(), client.Poll{Token: w.Token, Wait: 10 * time.Second})
			require.NoError(t, err, "round %d", round)
			require.NotNil(t, reply.Job, "round %d: the hand-out was lost", round)
			require.True(t, handed[reply.Job.ID], "round %d", round)
			require.Equal(t, 1, reply.Job.Attempt, "round %d: as the same attempt", round)
			delete(handed, reply.Job.ID)
			w.Token = reply.AccessToken
			_, err = client.Call(t.Context(), next.Client, api.FailHeldBuild, api.FailBuildIn{Body: api.FailBuild{BuildID: reply.Job.ID, Error: "enough"}})
			require.NoError(t, err)
		}
		require.Empty(t, handed, "round %d", round)
	}
}
