package takttest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"takt/cmd/internal/command"
	"takt/cmd/internal/runner"
	"takt/store/storetest/pgtest"
)

// Reexec is the variable that makes a test binary behave as takt itself, if it is 1. So
// end-to-end tests run real processes, race detector included.
const Reexec = "TAKT_TEST_REEXEC"

// Main runs the tests of a package, or takt, if Reexec says so. The functions are called when
// all tests have ended.
func Main(m *testing.M, ended ...func()) {
	if code, ran := runner.Helper(os.Args); ran {
		os.Exit(code)
	}
	if os.Getenv(Reexec) == "1" {
		if code, ran := runner.Init(os.Args); ran {
			os.Exit(code)
		}
		os.Exit(command.Run(context.Background(), os.Args[1:]))
	}
	// Tests wait for processes most of the time. On two cores, two at once took twice as long.
	flag.Parse()
	_ = flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0))))
	goleak.VerifyTestMain(suite{m, ended})
}

// suite is all tests of a package, with what they share.
type suite struct {
	*testing.M
	ended []func()
}

func (s suite) Run() int {
	// Data directories are in memory if there is room, because most of the time in which tests
	// did not wait went into files of PostgreSQL.
	dir, remove, err := pgtest.ScratchDir()
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer remove()
	for _, end := range s.ended {
		defer end()
	}
	return s.M.Run()
}
