// Command gotest runs `go test` as make's targets do: all packages against one PostgreSQL.
// At its end it says what ran and what did not:
//
//	1523 passed, 0 failed, 29 skipped
//	not here: 14 need podman, 9 browser, 6 S3 (make check)
//
//	gotest [flags] -- [flags of go test] packages
//
// It prints what go test prints
// without -v, and exits with its status.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"takt/store/storetest"
)

func main() { os.Exit(run(os.Args[1:])) }

// options are this command's own flags.
type options struct {
	passed  string // file that gets the tests that passed
	except  string // such a file: what passed is not run again
	slowest int
}

func run(args []string) int {
	var o options
	flags := flag.NewFlagSet("gotest", flag.ContinueOnError)
	flags.StringVar(&o.passed, "passed", "", "write the names of tests that passed to this file")
	flags.StringVar(&o.except, "except", "", "do not run tests that this file names, in any package")
	flags.IntVar(&o.slowest, "slowest", 10, "how many slow tests to name")
	if flags.Parse(args) != nil {
		return 2
	}
	// An interrupt at the terminal reaches go test, too, which ends its children.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := o.test(ctx, flags.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		return cmp.Or(code, 1)
	}
	return code
}

// test runs go test and returns its exit status.
func (o options) test(ctx context.Context, args []string) (code int, err error) {
	args = append([]string{"test", "-json"}, args...)
	if o.except != "" {
		skip, err := skipFlag(o.except)
		if err != nil {
			return 0, err
		}
		args = slices.Insert(args, 2, skip)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	programs, err := os.MkdirTemp("", "takt-test-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	cmd.Env = append(os.Environ(), "TAKT_TEST_PROGRAMS="+programs) // see buildtest.Build
	if os.Getenv("TAKT_TEST_DATABASE_URL") == "" {
		server, err := storetest.Serve(ctx)
		if err != nil {
			return 0, err
		}
		defer server.Stop()
		cmd.Env = append(cmd.Env, "TAKT_TEST_DATABASE_URL="+server.URL("postgres"))
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	r := newReport(os.Stdout)
	readErr := r.read(out)
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code, err = max(exit.ExitCode(), 1), nil
	}
	r.close(o.slowest, time.Since(began))
	if o.passed != "" && err == nil {
		err = os.WriteFile(o.passed, []byte(strings.Join(r.complete(), "\n")+"\n"), 0o600)
	}
	return code, errors.Join(readErr, err)
}

// skipFlag returns the flag of go test that leaves out the tests that the file names.
func skipFlag(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return "-skip=^(" + strings.Join(strings.Fields(string(raw)), "|") + ")$", nil
}
