package main

import (
	"context"
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"takt/cmd/internal/runner"
)

// reexec makes the test binary behave as takt itself, so that the end-to-end
// tests run real processes, race detector included.
const reexec = "TAKT_TEST_REEXEC"

func TestMain(m *testing.M) {
	if code, ran := runner.Helper(os.Args); ran {
		os.Exit(code)
	}
	if os.Getenv(reexec) == "1" {
		os.Exit(run(context.Background(), os.Args[1:]))
	}
	// Tests wait for processes most of the time. On two cores, two at once took twice as long.
	flag.Parse()
	_ = flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0))))
	goleak.VerifyTestMain(suite{m})
}

// suite is all tests, with what they share.
type suite struct{ *testing.M }

func (s suite) Run() int {
	defer stopShared()
	defer func() { _ = os.RemoveAll(madeCluster.dir) }()
	return s.M.Run()
}
