package deployment_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// holdGit keeps git waiting for its server, and tells when it does.
func (b *bundle) holdGit() (held <-chan struct{}) {
	begun := make(chan struct{}, 100)
	b.forge.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, ".git/") {
			return false
		}
		begun <- struct{}{}
		<-r.Context().Done()
		return true
	})
	return begun
}

// processes counts those whose arguments or directory are about a path.
func processes(t *testing.T, path string) (n int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, dir := range dirs {
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		at, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if strings.Contains(string(args), path) || strings.HasPrefix(at, path) {
			n++
		}
	}
	return n
}
