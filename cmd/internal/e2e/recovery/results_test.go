package recovery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/client"
)

// sharing starts two controllers that share a database and a file system.
func sharing(t *testing.T, settings ...string) (owner, second *process.Controller, db *pgx.Conn) {
	t.Helper()
	env := takttest.NewEnv(t)
	owner = env.StartController("owner", settings...)
	require.NoError(t, os.MkdirAll(filepath.Join(env.Dir, "second"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(owner.DataDir, "files"), filepath.Join(env.Dir, "second", "files")))
	second = env.StartController("second", append(owner.Shared(), settings...)...)
	return owner, second, takttest.Connect(t, owner)
}

// result is a build that a worker holds, and what it delivers.
func result(t *testing.T, c *process.Controller, w *takttest.Worker, content string) client.Upload {
	t.Helper()
	job := w.Poll(t)
	require.NotNil(t, job)
	file := client.Bytes([]byte(content))
	return client.Upload{Held: client.Held{BuildID: job.ID, WorkerID: w.ID, Attempt: job.Attempt}, Success: true, Result: &file}
}

// A controller is killed when results that share a transaction are committed, before it has
// answered; the database refuses one of them. The workers repeat their results at another
// controller, and each counts once.
func TestKilledBetweenTheCommitOfResultsAndTheReply(t *testing.T) {
	t.Parallel()
	owner, victim, db := sharing(t)
	const fleet = 8
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	var results []client.Upload
	for i := range fleet {
		takttest.Submit(t, owner, source)
		results = append(results, result(t, owner, takttest.Register(t, owner, 1), fmt.Sprint("result ", i)))
	}
	bad := results[fleet-1].BuildID
	_, err := db.Exec(t.Context(), `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON builds FOR EACH ROW WHEN (NEW.state = 'completed' AND NEW.id = '`+bad+`') EXECUTE FUNCTION refuse();
		CREATE FUNCTION notify_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('ended', NEW.id); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER notify_end AFTER UPDATE ON builds DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.state = 'completed') EXECUTE FUNCTION notify_end();
		LISTEN ended`)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	var sent sync.WaitGroup
	locked(t, owner, fleet, 2, func(i int) { // two transactions, while the others wait for the next one
		sent.Go(func() { _, _ = victim.Client.Upload(ctx, results[i]) })
	})()
	ended := map[string]bool{}
	for len(ended) < fleet-1 {
		n, err := db.WaitForNotification(t.Context())
		require.NoError(t, err)
		ended[n.Payload] = true
	}
	victim.Kill()
	cancel(nil)
	sent.Wait()
	require.False(t, ended[bad])
	_, err = db.Exec(t.Context(), `DROP TRIGGER refuse ON builds`)
	require.NoError(t, err)
	for i, r := range results {
		_, err := owner.Client.Upload(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("result ", i), takttest.Download(t, owner, r.BuildID))
	}
	requireOneResultEach(t, db, fleet)
}

// requireOneResultEach checks that n builds completed, each once and with one file.
func requireOneResultEach(t *testing.T, db *pgx.Conn, n int) {
	t.Helper()
	var builds, files, lines, completed, held int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM builds WHERE state = 'completed'), (SELECT count(*) FROM build_files WHERE kind = 'result'),
		(SELECT count(*) FROM build_logs WHERE kind = 'completed'), (SELECT sum(completed) FROM workers), (SELECT sum(held) FROM workers)`).Scan(&builds, &files, &lines, &completed, &held))
	require.Equal(t, []int{n, n, n, n, 0}, []int{builds, files, lines, completed, held})
}

// A controller stands still when it has locked the rows of a result, for longer than the
// database waits. The build runs again elsewhere and completes. When the controller goes on,
// it does not replace that result's file.
func TestAControllerFrozenInAResultReplacesNoNewerOne(t *testing.T) {
	t.Parallel()
	owner, second, db := sharing(t, "TAKT_BUILD_TIMEOUT=3s", "TAKT_CHECK_INTERVAL=100ms")
	var old client.Upload
	var answered chan error
	builds := 0
	inside := frozenInResults(t, owner, second, 1, func() func(int) {
		takttest.Submit(t, owner, takttest.Zip(t, map[string]string{"order.txt": "x"}))
		old, answered = result(t, owner, takttest.Register(t, owner, 1), "old"), make(chan error, 1)
		builds++
		return func(int) {
			_, err := second.Client.Upload(t.Context(), old)
			answered <- err
		}
	})
	takttest.Eventually(t, "the database ends the transaction", func() bool { return inside() == 0 })
	takttest.Eventually(t, "the build is pending again", func() bool { return takttest.Status(t, owner, old.BuildID).Status == "pending" })
	newer := result(t, owner, takttest.Register(t, owner, 1), "newer")
	require.Equal(t, old.BuildID, newer.BuildID)
	_, err := owner.Client.Upload(t.Context(), newer)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(second.PID(), syscall.SIGCONT))
	require.Contains(t, []int{503, 409}, client.StatusOf(<-answered))
	require.Equal(t, "newer", takttest.Download(t, owner, old.BuildID))
	requireOneResultEach(t, db, builds)
}
