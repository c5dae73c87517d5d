// Command takt is a self-hosted controller that hands builds to a fleet of
// workers, and everything that speaks to it: the worker and the client commands.
// `takt help` lists them.
//
// # State
//
// None of its own: settings are read here (config.go), in this package alone,
// and handed to the packages that do the work.
//
// # Failure
//
// An error is printed once, on standard error; the exit status says of which kind it is
// (see cmd/internal/cli).
//
// # Concurrency
//
// SIGINT and SIGTERM ask the running command to end; what that means is the
// command's own business.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:]))
}
