// Command mutants checks that tests hold what takt promises. It breaks one mechanism
// at a time, as testdata/mutants.txt says, and the test named there has to fail.
//
// # State
//
// Changed files and test programs in a temporary directory. The tree is not touched,
// because the compiler reads changed files through go build's -overlay.
//
// # Failure
//
// It exits with 1 if a mutant survives its test, does not compile or is stale (what it
// changes, or its test, is no longer there), or if a test fails without a mutant.
//
// # Concurrency
//
// As many mutants at once as -parallel says.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"takt/cmd/internal/must"
)

func main() {
	only := flag.String("only", "", "run the mutants whose name or test matches this `pattern`")
	stale := flag.Bool("stale", false, "run nothing: print the stale mutants, and fail if there are any")
	parallel := flag.Int("parallel", runtime.NumCPU(), "how many mutants to run at once")
	limit := flag.Duration("limit", 2*time.Minute, "how long the tests of one mutant may take")
	journal := flag.String("caught", "", "add mutants that are caught to this `file`, and do not run those that it has, while they and their tests stay as they are")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok := false
	err := must.Try(func() { ok = run(ctx, *only, *stale, *parallel, *limit, *journal) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, checkOnly bool, parallel int, limit time.Duration, journal string) (ok bool) {
	list, stale, err := load(".")
	must.Do(err)
	pattern := must.Get(regexp.Compile(only))
	faults := 0
	list = slices.DeleteFunc(list, func(m *mutant) bool {
		unasked := !pattern.MatchString(m.name + "\n" + m.pkg + " " + m.tests)
		if stale[m] != nil && !unasked {
			faults++
			fmt.Printf("%-8s %6s  %-20s %s\n  %v\n", "STALE", "", m.pkg, m.name, stale[m])
		}
		return unasked || stale[m] != nil
	})
	if checkOnly {
		return faults == 0
	}
	r := &runner{limit: limit, journal: journal, dir: must.Get(os.MkdirTemp("", "mutants-"))}
	defer func() { must.Do(os.RemoveAll(r.dir)) }()
	all := len(list)
	list = r.news(".", list)
	slices.SortStableFunc(list, func(a, b *mutant) int { return cmp.Compare(a.pkg, b.pkg) })

	// Without a mutant the tests of each package pass.
	var sound []*mutant
	for _, m := range list {
		if last := len(sound) - 1; last < 0 || sound[last].pkg != m.pkg {
			sound = append(sound, &mutant{name: "without a mutant", pkg: m.pkg, tests: m.tests})
		} else if !strings.Contains(sound[last].tests+"|", m.tests+"|") {
			sound[last].tests += "|" + m.tests
		}
	}
	begun := time.Now()
	faults += r.each(ctx, parallel, sound, r.sound)
	faults += r.each(ctx, parallel, list, r.caught)
	fmt.Printf("%d mutants in %s, %d faults, %d caught before\n", len(list), time.Since(begun).Round(time.Second), faults, all-len(list))
	must.Do(ctx.Err())
	return faults == 0 && all > 0
}

type runner struct {
	dir     string
	limit   time.Duration
	journal string // file of the mutants that were caught, if there is one
}

// each judges the mutants of list, several at once, prints a line for each and returns
// the number of those that judge has an objection to.
func (r *runner) each(ctx context.Context, parallel int, list []*mutant, judge func(context.Context, string, *mutant) (string, error)) (faults int) {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards faults and the output
	next := make(chan *mutant)
	for range parallel {
		wg.Go(func() {
			for m := range next {
				begun := time.Now()
				verdict, err := r.one(ctx, m, judge)
				verdict = cmp.Or(verdict, "ERROR")
				mu.Lock()
				fmt.Printf("%-8s %5.1fs  %-20s %s\n", verdict, time.Since(begun).Seconds(), m.pkg, m.name)
				if err == nil && m.key != "" {
					err = r.note(m)
				}
				if err != nil {
					faults++
					fmt.Printf("  promise: %s\n  test:    %s\n  %s\n", m.promise, m.tests, strings.ReplaceAll(err.Error(), "\n", "\n  "))
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range list {
		if ctx.Err() == nil {
			next <- m
		}
	}
	close(next)
	wg.Wait()
	return faults
}

func (r *runner) one(ctx context.Context, m *mutant, judge func(context.Context, string, *mutant) (string, error)) (verdict string, err error) {
	dir, err := os.MkdirTemp(r.dir, "")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return judge(ctx, dir, m)
}

// sound checks that the tests pass, and that none of them is skipped or missing.
func (r *runner) sound(ctx context.Context, dir string, m *mutant) (verdict string, err error) {
	out, err := r.test(ctx, dir, m, "")
	if err != nil {
		return "FAILS", err
	}
	for _, name := range m.names() {
		if !bytes.Contains(out, []byte("--- PASS: "+name+" (")) {
			return "FAILS", fmt.Errorf("%s was not run", name)
		}
	}
	return "passes", nil
}

// caught checks that a test fails because of m.
func (r *runner) caught(ctx context.Context, dir string, m *mutant) (verdict string, err error) {
	replace := map[string]string{}
	for name, text := range m.files {
		path, err := filepath.Abs(filepath.FromSlash(name))
		if err != nil {
			return "", err
		}
		replace[path] = filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	overlay := filepath.Join(dir, "overlay.json")
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err = errors.Join(err, os.WriteFile(overlay, raw, 0o600)); err != nil {
		return "", err
	}
	out, err := r.test(ctx, dir, m, overlay)
	switch _, ended := errors.AsType[*testError](err); {
	case err == nil:
		return "SURVIVES", fmt.Errorf("the test passes with this change: %v", m.changes[0])
	case !ended:
		return "", err
	case bytes.Contains(out, []byte("panic: test timed out")):
		return "HANGS", err
	case !bytes.Contains(out, []byte("--- FAIL: ")) && !bytes.Contains(out, []byte("\npanic: ")):
		return "", err
	}
	return "caught", nil
}

// testError is a test program that has failed.
type testError struct {
	err error
	out []byte
}

func (e *testError) Error() string {
	lines := strings.Split(strings.TrimSpace(string(e.out)), "\n")
	return fmt.Sprintf("%v\n%s", e.err, strings.Join(lines[max(0, len(lines)-30):], "\n"))
}

// test builds and runs the tests of m. Programs that the tests build are built with the
// overlay too.
func (r *runner) test(ctx context.Context, dir string, m *mutant, overlay string) (out []byte, err error) {
	env := os.Environ()
	if overlay != "" {
		env = append(env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	program := filepath.Join(dir, "tests")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", program, "./"+m.pkg)
	build.Env = env
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building: %w\n%s", err, out)
	}
	args := []string{"-test.v", "-test.run", m.tests, "-test.timeout", r.limit.String()}
	if overlay != "" {
		args = append(args, "-test.failfast")
	}
	tests := exec.CommandContext(ctx, program, args...)
	tests.Dir, tests.Env = filepath.FromSlash(m.pkg), env
	tests.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	tests.Cancel = func() error { return syscall.Kill(-tests.Process.Pid, syscall.SIGKILL) }
	tests.WaitDelay = 10 * time.Second
	out, err = tests.CombinedOutput()
	if tests.Process != nil { // what the tests left behind ends with them, in whichever process group it is
		_ = exec.CommandContext(context.WithoutCancel(ctx), "pkill", "-KILL", "-s", strconv.Itoa(tests.Process.Pid)).Run() // it fails if there is nothing
	}
	if err != nil {
		return out, &testError{err, out}
	}
	return out, nil
}
