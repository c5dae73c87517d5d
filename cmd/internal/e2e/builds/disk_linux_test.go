package builds

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/needs"
)

// A disk that holds files and database fills up: first beyond its reserve, then entirely.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	env, ctx := takttest.NewEnv(t), t.Context()
	const mib, size = 1 << 20, 240
	dir := filepath.Join(env.Dir, "takt")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	mount := exec.CommandContext(ctx, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=700", size), "tmpfs", dir)
	needs.Allowed(t, "mount", mount.Run())
	t.Cleanup(func() {
		require.NoError(t, exec.CommandContext(context.WithoutCancel(ctx), "umount", "-l", dir).Run())
	})
	env.OwnCluster = true
	c := env.StartController("takt")
	worker, err := c.Client.Register(ctx, api.Register{Name: "one", Capabilities: []byte("{}")})
	require.NoError(t, err)
	token := worker.AccessToken
	hold := func() string {
		t.Helper()
		reply, err := c.Client.Poll(ctx, client.Poll{Token: token})
		require.NoError(t, err)
		require.NotNil(t, reply.Job)
		token = reply.AccessToken
		return reply.Job.ID
	}
	send := func() error {
		_, err := c.Client.Submit(ctx, client.Submit{Platform: store.Android, Source: client.Bytes([]byte("x"))})
		return err
	}
	result := func(id string) error {
		_, err := c.Client.Upload(ctx, client.Upload{Held: client.Held{BuildID: id, WorkerID: worker.ID}, Success: true, Result: new(client.Bytes(make([]byte, mib)))})
		return err
	}
	require.NoError(t, send())
	require.NoError(t, send())
	first := hold()
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	require.NoError(t, err)
	defer ballast.Close()
	fill := func(leave int64) { // what PostgreSQL writes meanwhile may need another look
		t.Helper()
		for {
			var fs syscall.Statfs_t
			require.NoError(t, syscall.Statfs(dir, &fs))
			more := int64(fs.Bavail)*fs.Bsize - leave
			if more <= 0 {
				return
			}
			end, err := ballast.Seek(0, io.SeekEnd)
			require.NoError(t, err)
			_ = syscall.Fallocate(int(ballast.Fd()), 0, end, more) // there may be less by now
		}
	}
	fill(size / 20 * mib * 3 / 4)
	err = send()
	require.Equal(t, 507, client.StatusOf(err), "%v", err)
	require.NoError(t, result(first), "there is room for what is running")
	second := hold()
	before := takttest.Files(t, c)
	fill(0)
	err = result(second)
	require.Equal(t, 507, client.StatusOf(err), "%v", err)
	require.Equal(t, before, takttest.Files(t, c), "nothing half-written is left")

	// PostgreSQL has no room for its log either, and goes down.
	db, err := pgx.Connect(ctx, c.DatabaseURL())
	require.NoError(t, err)
	for err == nil {
		_, err = db.Exec(ctx, "SELECT pg_logical_emit_message(false, 'ballast', repeat('x', 1 << 20))")
	}
	_ = db.Close(ctx) // it is broken
	takttest.Eventually(t, "requests are refused in time", func() bool {
		err := send()
		require.Contains(t, []int{503, 507}, client.StatusOf(err), "%v", err)
		return client.StatusOf(err) == 507 || client.RetryAfter(err) > 0
	})
	require.NoError(t, ballast.Truncate(0))
	takttest.Eventually(t, "all resumes by itself", func() bool { return send() == nil && result(second) == nil })
	for _, id := range []string{first, second} {
		require.Equal(t, string(store.Completed), takttest.Status(t, c, id).Status)
	}
	var root api.TreeNode
	takttest.Eventually(t, "nothing is suspended", func() bool {
		root, err = c.Client.Tree(ctx, client.TreeOptions{})
		return err == nil && !strings.Contains(strings.Join(takttest.Trouble(&root), "\n"), " is suspended")
	})
	for _, node := range takttest.Trouble(&root) {
		require.Regexp(t, "^takt/database(/postgres)? is running", node, "it ends if it has no room to recover either, and is started again")
	}
}
