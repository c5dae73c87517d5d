// Package needs says what a test needs beyond Go, and tries once whether it is there.
//
//	needs.Postgres(t)
//	program := needs.S3(t)
//
// A test whose need is not met is skipped, with a reason that begins with "needs NAME:",
// which `make test` counts. The variable TAKT_TEST_NEEDS changes that:
//
//   - basic, as in make test: PostgreSQL and git have to be there, what the system allows is
//     tried, and the rest is left to make check;
//   - all, as in make check: a need that is not met fails the test, unless the list
//     TAKT_TEST_LACKS names it. So CI can't skip anything silently.
//
// In short mode, as in make unit, nothing is there.
//
// Functions may be called from any goroutine.
package needs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"takt/store/storetest/pgbin"
)

// need is something that may be missing. What it is found at, if that matters, is its path.
type need struct {
	name string
	when when
	get  string // how to get it
	find func() (path string, err error)
}

// when says what make test does about a need.
type when int

const (
	always  when = iota // make test fails without it
	allowed             // make test tries it: a right, or a part of the system
	left                // make test leaves it to make check
)

// The needs, each tried once for a test binary.
var (
	postgres  = once("PostgreSQL", always, "`.ci/setup postgres` installs it", findPostgres)
	git       = once("git", always, "`.ci/setup git` installs it", findGit)
	curl      = once("curl", left, "`.ci/setup curl` installs it", func() (string, error) { return exec.LookPath("curl") })
	jq        = once("jq", left, "`.ci/setup curl` installs it", func() (string, error) { return exec.LookPath("jq") })
	s3        = once("S3", left, "`make setup-s3` builds the server", tool("versitygw-*/versitygw"))
	registry  = once("registry", left, "`make setup-podman` builds the server of images", tool("registry-*/registry"))
	collector = once("collector", left, "`make setup-otel` builds the OpenTelemetry Collector", tool("otelcol-*/otelcol"))
	promtool  = once("promtool", left, "`make setup-promtool` fetches it", tool("promtool"))
	axe       = once("axe", left, "`make setup-browser` fetches axe-core", file("axe-core-*/axe.min.js"))
	webhooks  = once("webhooks", left, "`make setup-browser` fetches the library standardwebhooks", findWebhooks)
	browser   = once("browser", left, "`.ci/setup chromium` installs it", findBrowser)
	podman    = once("podman", left, "`.ci/setup podman` installs it", findPodman)
)

// once returns a need that is tried when it is first asked for.
func once(name string, when when, get string, find func() (string, error)) *need {
	return &need{name: name, when: when, get: get, find: sync.OnceValues(find)}
}

// Postgres needs a server of PostgreSQL: its programs, or TAKT_TEST_DATABASE_URL.
func Postgres(tb testing.TB) { tb.Helper(); postgres.met(tb) }

// Git needs git, with its server for HTTP.
func Git(tb testing.TB) { tb.Helper(); git.met(tb) }

// Curl needs curl.
func Curl(tb testing.TB) { tb.Helper(); curl.met(tb) }

// JQ needs jq.
func JQ(tb testing.TB) { tb.Helper(); jq.met(tb) }

// S3 needs an S3 server, and returns the program.
func S3(tb testing.TB) (program string) { tb.Helper(); return s3.met(tb) }

// Registry needs a server of container images, and returns the program.
func Registry(tb testing.TB) (program string) { tb.Helper(); return registry.met(tb) }

// Collector needs the OpenTelemetry Collector, and returns the program.
func Collector(tb testing.TB) (program string) { tb.Helper(); return collector.met(tb) }

// Promtool needs Prometheus' tool, and returns it.
func Promtool(tb testing.TB) (program string) { tb.Helper(); return promtool.met(tb) }

// Axe needs axe-core, and returns its script.
func Axe(tb testing.TB) (script string) { tb.Helper(); return axe.met(tb) }

// Webhooks needs Node.js and the library of the Standard Webhooks specification, and returns
// the latter's directory.
func Webhooks(tb testing.TB) (library string) { tb.Helper(); return webhooks.met(tb) }

// Browser needs a browser that starts, and returns the program.
func Browser(tb testing.TB) (program string) { tb.Helper(); return browser.met(tb) }

// Podman needs podman, and that it can run a container here.
func Podman(tb testing.TB) { tb.Helper(); podman.met(tb) }

// Root needs to be root.
func Root(tb testing.TB) {
	tb.Helper()
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("this is not root")
	}
	Allowed(tb, "root", err)
}

// Linux needs Linux.
func Linux(tb testing.TB) {
	tb.Helper()
	var err error
	if runtime.GOOS != "linux" {
		err = fmt.Errorf("this is %s", runtime.GOOS)
	}
	Allowed(tb, "Linux", err)
}

// Allowed needs a right or a part of the system, which the test itself has just tried: err
// says why it has it not.
func Allowed(tb testing.TB, name string, err error) {
	tb.Helper()
	(&need{name: name, when: allowed, get: "it depends on the system", find: func() (string, error) { return "", err }}).met(tb)
}

// Files needs a limit of at least n open files. Go raises a process's own to the hard limit.
func Files(tb testing.TB, n uint64) {
	tb.Helper()
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	if err == nil && limit.Max < n {
		err = fmt.Errorf("the hard limit is %d", limit.Max)
	}
	Allowed(tb, fmt.Sprintf("%d open files", n), err)
}

// Asked needs that the variable is set, as the target of make does that runs a test of minutes.
func Asked(tb testing.TB, variable, target string) {
	tb.Helper()
	if os.Getenv(variable) == "" {
		tb.Skipf("left to %s", target)
	}
}

// Check leaves a test that keeps the machine busy for a minute to make check.
func Check(tb testing.TB) {
	tb.Helper()
	if os.Getenv("TAKT_TEST_NEEDS") == "basic" {
		tb.Skip("left to make check")
	}
}

// met returns the path, or ends the test.
func (n *need) met(tb testing.TB) (path string) {
	tb.Helper()
	mode := os.Getenv("TAKT_TEST_NEEDS")
	switch {
	case testing.Short() && n.when != allowed:
		tb.Skipf("needs %s: make unit does without", n.name)
	case mode == "basic" && n.when == left:
		tb.Skipf("needs %s: left to make check", n.name)
	}
	path, err := n.find()
	switch {
	case err == nil:
	case mode == "all" && !slices.Contains(strings.Split(os.Getenv("TAKT_TEST_LACKS"), ","), n.name),
		mode == "basic" && n.when == always:
		tb.Fatalf("needs %s: %v; %s", n.name, err, n.get)
	default:
		tb.Skipf("needs %s: %v; %s", n.name, err, n.get)
	}
	return path
}

// Repeat returns how often a test repeats what it does: fully in make test-long, else briefly.
func Repeat(briefly, fully int) int {
	if os.Getenv("TAKT_TEST_LONG") != "" {
		return fully
	}
	return briefly
}

func findPostgres() (string, error) {
	if os.Getenv("TAKT_TEST_DATABASE_URL") != "" {
		return "", nil
	}
	return pgbin.Dir()
}

func findGit() (string, error) {
	out, err := exec.Command("git", "--exec-path").Output() // it ends at once
	if err == nil {
		_, err = os.Stat(filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"))
	}
	return "", err
}

// file returns what finds a file that make fetched, by its pattern in the cache of tools. The
// newest version is the last one.
func file(pattern string) func() (string, error) {
	return func() (string, error) {
		tools := os.Getenv("TAKT_TEST_TOOLS")
		if tools == "" {
			cache := os.Getenv("XDG_CACHE_HOME")
			if cache == "" {
				cache = filepath.Join(os.Getenv("HOME"), ".cache")
			}
			tools = filepath.Join(cache, "takt", "tools")
		}
		found, err := filepath.Glob(filepath.Join(tools, pattern))
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("there is no %s in %s", pattern, tools)
		}
		if err != nil {
			return "", err
		}
		return filepath.Abs(found[len(found)-1])
	}
}

// tool is file for a program, which has to run.
func tool(pattern string) func() (string, error) {
	return func() (string, error) {
		path, err := file(pattern)()
		if err != nil {
			return "", err
		}
		var exit *exec.ExitError
		if err = exec.Command(path, "--version").Run(); errors.As(err, &exit) { // it ends at once, as it knows the flag or not
			err = nil
		}
		return path, err
	}
}

func findWebhooks() (string, error) {
	if err := exec.Command("node", "--version").Run(); err != nil { // it ends at once
		return "", err
	}
	return file("standardwebhooks-*/node_modules/standardwebhooks")()
}

// findBrowser starts the Chromium without windows, which takes half the processor time of the
// other. The wrapper in the path would leave it behind when tests are killed.
func findBrowser() (string, error) {
	const path = "/usr/lib/chromium/chromium-headless-shell"
	dir, err := os.MkdirTemp("", "takt-browser-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return path, try(exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", // see try
		"--user-data-dir="+dir, "--dump-dom", "about:blank"))
}

// try runs a program that may hang.
func try(cmd *exec.Cmd) error {
	cmd.WaitDelay = time.Second
	stop := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		text := strings.TrimSpace(string(out))
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, text[max(0, len(text)-300):])
	}
	return nil
}
