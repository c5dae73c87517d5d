// Package needs leaves out tests where what they need is missing.
package needs

import (
	"os"
	"runtime"
	"testing"
)

// Server skips the test in short mode: `make unit` runs where nothing but Go is installed,
// without the server or program that is named.
func Server(tb testing.TB, name string) {
	tb.Helper()
	if testing.Short() {
		tb.Skipf("needs %s, which make unit does without", name)
	}
}

// Linux skips the test on other systems.
func Linux(tb testing.TB) {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Skip("needs Linux")
	}
}

// Repeat is how often a test does what more repetitions only make more certain: briefly, or
// fully if TAKT_TEST_LONG is set.
func Repeat(briefly, fully int) int {
	if os.Getenv("TAKT_TEST_LONG") != "" {
		return fully
	}
	return briefly
}
