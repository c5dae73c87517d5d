// Package takttest builds takt for the tests of the commands that start it.
//
// # State
//
// A program in the test's own directory.
//
// # Failure
//
// What does not build fails the test, with the compiler's words.
//
// # Concurrency
//
// Build may be called from any goroutine.
package takttest

import (
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store/storetest/needs"
)

// Build makes takt and returns its path. It has the race detector if the test has
// it; a race makes takt exit with a failure.
func Build(tb testing.TB) string {
	tb.Helper()
	needs.Postgres(tb)
	path := filepath.Join(tb.TempDir(), "takt")
	args := []string{"build", "-o", path}
	info, _ := debug.ReadBuildInfo()
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(tb.Context(), "go", append(args, "takt/cmd/takt")...).CombinedOutput()
	require.NoError(tb, err, "%s", out)
	return path
}
