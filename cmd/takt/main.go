// Command takt is a self-hosted controller that hands builds to a fleet of workers. It
// also contains the worker and the client commands. `takt help` lists them.
//
// # State
//
// The command has no state of its own. Only packages below cmd/internal
// read settings; they hand them to the packages that do the work.
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

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/runner"
)

// release and commit are set with -X by the linker (see the Makefile).
var release, commit string //nolint:gochecknoglobals // only the linker writes them

func main() {
	cli.Built(release, commit)
	if code, ran := runner.Helper(os.Args); ran {
		os.Exit(code)
	}
	if code, ran := runner.Init(os.Args); ran {
		os.Exit(code)
	}
	os.Exit(command.Run(context.Background(), os.Args[1:]))
}
