package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRemoveAllBesideAProcessThatSwapsLinks has a build's left-over process exchange a
// directory for a link to a directory elsewhere while the tree is removed.
func TestRemoveAllBesideAProcessThatSwapsLinks(t *testing.T) {
	t.Parallel()
	tree, victim := filepath.Join(t.TempDir(), "tree"), t.TempDir()
	require.NoError(t, os.Chmod(victim, 0o755))
	kept := filepath.Join(victim, "kept")
	require.NoError(t, os.WriteFile(kept, nil, 0o644))
	var swaps atomic.Int64
	var swapper sync.WaitGroup
	ctx, stop := context.WithCancelCause(t.Context())
	swapper.Go(func() {
		for i := 0; ctx.Err() == nil; i = (i + 1) % 16 {
			dir, link := filepath.Join(tree, fmt.Sprint("dir", i)), filepath.Join(tree, fmt.Sprint("link", i))
			if unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil {
				swaps.Add(1)
				continue
			}
			_ = os.MkdirAll(dir, 0o700)
			_ = os.Symlink(victim, link)
		}
	})
	for tries := 0; tries < 20_000 || swaps.Load() < 1000; tries++ {
		_ = removeAll(tree) // it may fail while the tree grows
	}
	stop(context.Canceled)
	swapper.Wait()
	info := must(os.Stat(victim))(t)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), "the mode of a directory outside")
	require.FileExists(t, kept)
	require.NoError(t, removeAll(tree))
	require.NoDirExists(t, tree)
}
