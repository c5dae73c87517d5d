package runner

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/http/api"
	"takt/store"
)

func TestAProcessIDStaysOnlyWhereTheProcessBeforeHasCertainlyEnded(t *testing.T) {
	t.Parallel()
	here := machine{id: "m1", boot: "b1"}
	open := func(t *testing.T, dir string, m machine) (id, instance string, copied bool) {
		t.Helper()
		s := must(openState(dir, ""))(t)
		defer s.close()
		copied = must(s.identify(m))(t)
		require.True(t, store.ValidID(s.instance))
		return s.id, s.instance, copied
	}
	for name, tt := range map[string]struct {
		second                 machine
		copy                   bool
		sameID, sameInstance   bool
		thirdInstanceIsTheSame bool // as the second's, in the same place
	}{
		"the same directory":                            {second: here, sameID: true, sameInstance: true, thirdInstanceIsTheSame: true},
		"a copy of it":                                  {second: here, copy: true, sameID: true, thirdInstanceIsTheSame: true},
		"after the machine was started again":           {second: machine{id: "m1", boot: "b2"}, sameID: true, thirdInstanceIsTheSame: true},
		"a copy on another machine":                     {second: machine{id: "m2", boot: "b2"}, copy: true, thirdInstanceIsTheSame: true},
		"a disk that another machine was made of":       {second: machine{id: "m2", boot: "b1"}, thirdInstanceIsTheSame: true},
		"a machine whose id can't be told":              {second: machine{boot: "b1"}, sameID: true, sameInstance: true, thirdInstanceIsTheSame: true},
		"a machine whose start can't be told":           {second: machine{id: "m1"}, sameID: true},
		"a copy on a machine of which nothing is known": {second: machine{}, copy: true, sameID: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := filepath.Join(t.TempDir(), "first")
			id, instance, copied := open(t, first, here)
			require.False(t, copied)
			second := first
			if tt.copy {
				second = filepath.Join(t.TempDir(), "second")
				require.NoError(t, os.CopyFS(second, os.DirFS(first)))
			}
			id2, instance2, copied := open(t, second, tt.second)
			require.Equal(t, tt.sameID, id == id2)
			require.Equal(t, !tt.sameID, copied)
			require.Equal(t, tt.sameInstance, instance == instance2)
			id3, instance3, copied := open(t, second, tt.second)
			require.False(t, copied, "once only")
			require.Equal(t, id2, id3)
			require.Equal(t, tt.thirdInstanceIsTheSame, instance2 == instance3)
			if tt.second.id == "" && !tt.copy {
				_, _, copied = open(t, second, machine{id: "m2", boot: "b1"})
				require.True(t, copied, "the first machine's id is kept")
			}
		})
	}
}

// A worker whose id another process uses waits as it is told to, says why, and takes
// builds when it may.
func TestADuplicateWorkerWaitsAndSaysWhy(t *testing.T) {
	t.Parallel()
	b := newBench(t, `cp main.txt "$TAKT_OUTPUT"`)
	refused := make(chan time.Time, 10)
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/workers/register" {
			return false
		}
		w.Header().Set("Retry-After", "1")
		controllertest.Problem(w, http.StatusConflict, store.DuplicateWorker, "Another process uses this worker id")
		refused <- time.Now()
		return true
	})
	log := newOutput()
	b.worker.log = b.worker.log.Output(log)
	b.start(t)
	first, second := <-refused, <-refused
	require.GreaterOrEqual(t, second.Sub(first), 900*time.Millisecond)
	require.Contains(t, log.String(), "another process uses this worker id")
	b.Intercept(nil)
	b.completes(t)
	require.Equal(t, 1, b.Workers()[0].Registrations)
}

// The first of two speaks after the second has taken over: it drops its build without a
// report, and registers when it may.
func TestAWorkerWhoseIDWasTakenOverDropsItsBuilds(t *testing.T) {
	t.Parallel()
	b := newBench(t, slow)
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	pids := b.pids(t, id)
	var named atomic.Int64
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/heartbeat") && r.Header.Get(api.HeaderInstance) == b.worker.state.instance {
			named.Add(1)
		}
		if r.URL.Path != "/api/workers/register" {
			w.Header().Set("Retry-After", "1")
			controllertest.Problem(w, http.StatusConflict, store.DuplicateWorker, "Another process uses this worker id")
			return true
		}
		return false
	})
	awaitDead(t, pids...)
	require.NotZero(t, named.Load(), "heartbeats name the process")
	b.Await(t, "it registers", func() bool { return b.Workers()[0].Registrations == 2 })
	require.Zero(t, b.Build(id).Uploads)
}
