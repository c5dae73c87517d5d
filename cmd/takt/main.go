// Command takt is a self-hosted controller that hands builds to a fleet of workers. It
// also contains the worker and the client commands. `takt help` lists them.
//
// # State
//
// The command has no state of its own. Only this package reads settings (config.go); it
// hands them to the packages that do the work.
//
// # Failure
//
// An error is printed once, on standard error. The exit status tells the kind of error
// (see cmd/internal/cli).
//
// # Concurrency
//
// SIGINT and SIGTERM ask the running command to end. Each command decides how it ends.
package main

import (
	"context"
	"os"

	"takt/cmd/internal/runner"
)

func main() {
	if code, ran := runner.Helper(os.Args); ran {
		os.Exit(code)
	}
	if code, ran := runner.Init(os.Args); ran {
		os.Exit(code)
	}
	os.Exit(run(context.Background(), os.Args[1:]))
}
