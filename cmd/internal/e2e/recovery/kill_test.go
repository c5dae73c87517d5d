package recovery

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/takttest"
	"takt/http/client"
	"takt/store"
)

func TestBuildOfAKilledWorkerCompletesElsewhere(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_BUILD_TIMEOUT=3s", "TAKT_WORKER_TIMEOUT=3s")
	// The first worker never ends its build.
	victim := env.StartWorker(c, "victim", "echo waiting; exec sleep 300")
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "precious"}))
	takttest.Eventually(t, "the victim builds", func() bool { return takttest.Status(t, c, id).Status == string(store.Building) })
	first := *takttest.Status(t, c, id).WorkerID
	victim.Kill()

	env.StartWorker(c, "heir", takttest.CopyOrder)
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })

	st := takttest.Status(t, c, id)
	require.Equal(t, 2, st.Attempt)
	require.NotEqual(t, first, *st.WorkerID)
	require.Equal(t, "precious", takttest.Download(t, c, id))

	ask := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		root := command.New(cli.Environment(takttest.Environment("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey, "HOME", t.TempDir())))
		require.Zero(t, cli.Execute(t.Context(), root, args, &out, &out), out.String())
		return out.String()
	}
	const at = `\S+Z? +`
	require.Regexp(t, `AT +WHAT +WORKER +DETAILS
`+at+`Submitted +- +android, priority 0
`+at+`Assigned +victim +after waiting .*
`+at+`Attempt 1 lost +- +no sign of life from worker victim
`+at+`Assigned +heir +attempt 2
`+at+`Uploaded +- +8 B
`+at+`Completed`, ask("explain", id))
	require.Equal(t, id+" does not wait: it is completed. takt explain "+id+" shows what happened\n", ask("why", id))
}

func TestKilledControllerLosesNoAcknowledgedSubmit(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	acknowledged := map[string]string{}
	for round := range 3 {
		c := env.StartController("takt")
		var mu sync.Mutex
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancelCause(t.Context())
		for i := range 4 {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					order := fmt.Sprintf("round %d, submitter %d, order %d", round, i, n)
					sub, err := c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(takttest.Zip(t, map[string]string{"order.txt": order}))})
					if err != nil {
						return // the kill
					}
					mu.Lock()
					acknowledged[sub.ID] = order
					mu.Unlock()
				}
			})
		}
		takttest.Eventually(t, "some submits are acknowledged", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acknowledged) >= 10*(round+1)
		})
		c.Kill()
		cancel(context.Canceled)
		wg.Wait()
	}
	c := env.StartController("takt", "TAKT_POLL_RATE=0")
	w := takttest.Register(t, c, len(acknowledged)+100)
	got := map[string]bool{}
	for {
		job := w.Poll(t)
		if job == nil {
			break
		}
		require.False(t, got[job.ID], "handed out twice")
		got[job.ID] = true
		if order, ok := acknowledged[job.ID]; ok {
			require.Contains(t, w.Source(t, job.ID), order)
		}
	}
	for id := range acknowledged {
		require.True(t, got[id], "acknowledged build %s is gone", id)
	}
}

func TestSecondControllerInOneDataDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	p, err := env.Launch("intruder", []string{"TAKT_DATA_DIR=" + c.DataDir, "TAKT_LISTEN=127.0.0.1:0"}, "serve")
	require.NoError(t, err)
	<-p.Done()
	require.Error(t, p.Failure())
	require.Contains(t, p.Tail(), "used by another takt")
}
