// Package buildtest builds takt for the tests of the commands that start it.
//
// # State
//
// A program, in the directory that TAKT_TEST_PROGRAMS names, which the packages of one run share
// (see gotest), or else in the test's own.
//
// # Failure
//
// What does not build fails the test, with the compiler's words.
//
// # Concurrency
//
// Build may be called from any goroutine, and by several processes.
package buildtest

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/store/storetest/needs"
)

// Main runs the tests of a command, and removes what takt leaves behind where one fails.
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "takt-test-")
	if err == nil { // PostgreSQL's account works below
		err = errors.Join(os.Chmod(dir, 0o711), os.Setenv("TMPDIR", dir)) //nolint:gosec // see above
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// Build makes takt and returns its path. It has the race detector if the test has
// it; a race makes takt exit with a failure.
func Build(tb testing.TB) string {
	tb.Helper()
	needs.Postgres(tb)
	path := filepath.Join(cmp.Or(os.Getenv("TAKT_TEST_PROGRAMS"), tb.TempDir()), "takt") //nolint:forbidigo // a setting of tests
	args := []string{"build", "-o", path}
	info, _ := debug.ReadBuildInfo()
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		path += "-race"
		args = []string{"build", "-race", "-o", path}
	}
	// go build leaves a program alone that is up to date, if nobody is just writing it.
	lock, err := os.Create(path + ".lock") //nolint:gosec // gotest made the directory
	require.NoError(tb, err)
	defer func() { require.NoError(tb, lock.Close()) }()
	require.NoError(tb, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	out, err := exec.CommandContext(tb.Context(), "go", append(args, "takt/cmd/takt")...).CombinedOutput() //nolint:gosec // the path is gotest's
	require.NoError(tb, err, "%s", out)
	return path
}
