package main

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

// reexec makes the test binary behave as takt itself, so that the end-to-end
// tests run real processes, race detector included.
const reexec = "TAKT_TEST_REEXEC"

func TestMain(m *testing.M) {
	if code, ran := runner.Helper(os.Args); ran {
		os.Exit(code)
	}
	if os.Getenv(reexec) == "1" {
		if code, ran := runner.Init(os.Args); ran {
			os.Exit(code)
		}
		os.Exit(command.Run(context.Background(), os.Args[1:]))
	}
	// Tests wait for processes most of the time. On two cores, two at once took twice as long.
	flag.Parse()
	_ = flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0))))
	goleak.VerifyTestMain(suite{m})
}

// suite is all tests, with what they share.
type suite struct{ *testing.M }

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
	defer stopShared()
	return s.M.Run()
}

// disk is a directory for what is too large for memory.
var disk = os.TempDir()
