package pack_test

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/pack"
)

func TestUnreadable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, closed string
		listed       bool // the list succeeds
	}{{"a directory", "sub", false}, {"a file", "sub/a", true}, {"a .gitignore", ".gitignore", false}, {"a .taktignore", ".taktignore", false}, {"what is ignored", "out", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base, err := os.MkdirTemp("", "pack-unreadable-") // which another user may enter
			require.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(base) })
			require.NoError(t, os.Chmod(base, 0o755))
			d := dir{t, base}
			d.write("sub/a", "out/b", ".gitignore=out\n", ".taktignore=x\n")
			path := filepath.Join(d.path, tt.closed)
			require.NoError(t, os.Chmod(path, 0))
			t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
			if os.Geteuid() == 0 { // who reads everything, but not as another user
				runtime.LockOSThread() // and this thread ends with the test
				require.NoError(t, syscall.Setfsuid(12345))
				defer func() { require.NoError(t, syscall.Setfsuid(0)) }()
			}
			tree, err := pack.List(t.Context(), pack.Options{Dir: d.path})
			if tt.listed {
				require.NoError(t, err)
				err = tree.Write(t.Context(), io.Discard, nil)
			}
			if tt.closed == "out" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, os.ErrPermission)
			require.ErrorContains(t, err, tt.closed)
		})
	}
}
