// Package needs leaves out tests where what they need is missing.
package needs

import (
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
