package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// minMajor is the oldest PostgreSQL that the store's SQL is written for.
const minMajor = 14

// ErrNoBinaries reports that this machine has no PostgreSQL server programs that
// takt can run; the error that wraps it names the command that installs them.
var ErrNoBinaries = errors.New("no PostgreSQL server programs found")

// Binaries is one installed set of PostgreSQL server programs.
type Binaries struct {
	Dir   string // holds initdb and postgres
	Major int    // 15 for PostgreSQL 15.18
}

func (b Binaries) path(program string) string { return filepath.Join(b.Dir, program) }

// wellKnown are the directories outside PATH into which packages put the server
// programs: Debian, Red Hat, Alpine, Homebrew on both kinds of Mac, Postgres.app.
func wellKnown() []string {
	return []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/usr/libexec/postgresql*",
		"/usr/local/pgsql/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/opt/homebrew/opt/postgresql/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	}
}

// Installed returns the server programs that takt would run for a data directory. It
// starts and changes nothing.
func Installed(ctx context.Context, dataDir, searchPath string) (Binaries, error) {
	found, err := findBinaries(ctx, searchPath, wellKnown())
	if err != nil {
		return Binaries{}, err
	}
	dir := filepath.Join(dataDir, clusterName)
	major := 0
	if text, err := os.ReadFile(filepath.Join(dir, "PG_VERSION")); err == nil {
		if major, err = clusterMajor(dir, text); err != nil {
			return Binaries{}, err
		}
	}
	return chooseBinaries(found, major, dir)
}

// clusterMajor reads the version in a cluster's PG_VERSION.
func clusterMajor(dir string, text []byte) (int, error) {
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || major <= 0 {
		return 0, fmt.Errorf("%s: not a version: %.20q", filepath.Join(dir, "PG_VERSION"), text)
	}
	return major, nil
}

// findBinaries lists the usable server programs, the preferred ones first: those on
// searchPath, in its order, because the operator chose it, then those that match the globs,
// newest first.
func findBinaries(ctx context.Context, searchPath string, globs []string) ([]Binaries, error) {
	seen := map[string]bool{}
	found := binariesIn(ctx, filepath.SplitList(searchPath), seen)
	var dirs []string
	for _, glob := range globs {
		matches, err := filepath.Glob(glob)
		if err != nil {
			return nil, fmt.Errorf("looking for PostgreSQL in %q: %w", glob, err)
		}
		dirs = append(dirs, matches...)
	}
	rest := binariesIn(ctx, dirs, seen)
	slices.SortStableFunc(rest, func(a, b Binaries) int { return b.Major - a.Major })
	found = append(found, rest...)
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: install them (Debian, Ubuntu: apt-get install postgresql · macOS: brew install postgresql@17) or give a database URL", ErrNoBinaries)
	}
	first := found[0]
	found = slices.DeleteFunc(found, func(b Binaries) bool { return b.Major < minMajor })
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %s holds PostgreSQL %d, takt needs %d or newer", ErrNoBinaries, first.Dir, first.Major, minMajor)
	}
	return found, nil
}

// binariesIn lists the server programs in dirs that are not in seen. It resolves symbolic
// links first, because /usr/local/bin often links to initdb alone, and postgres is only
// next to the link's target.
func binariesIn(ctx context.Context, dirs []string, seen map[string]bool) (found []Binaries) {
	for _, dir := range dirs {
		for _, program := range []string{"postgres", "initdb"} {
			target, err := filepath.EvalSymlinks(filepath.Join(dir, program))
			if err != nil {
				continue
			}
			b := Binaries{Dir: filepath.Dir(target)}
			if b.Dir, err = filepath.Abs(b.Dir); err != nil || seen[b.Dir] {
				continue
			}
			seen[b.Dir] = true
			if !executable(b.path("postgres")) || !executable(b.path("initdb")) {
				continue
			}
			if b.Major, err = majorOf(ctx, b.path("postgres")); err == nil {
				found = append(found, b)
			}
		}
	}
	return found
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// majorOf returns the major version of a server program.
func majorOf(ctx context.Context, postgres string) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("postgres --version took over 10 s"))
	defer cancel()
	cmd := exec.CommandContext(ctx, postgres, "--version")
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("reading the version of %s: %w", postgres, err)
	}
	return parseMajor(string(out))
}

// parseMajor reads "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)". The number may
// also be "17beta1" or "18devel".
func parseMajor(version string) (int, error) {
	m := regexp.MustCompile(`\(PostgreSQL\) (\d+)`).FindStringSubmatch(version)
	if m == nil {
		return 0, fmt.Errorf("not a PostgreSQL version: %q", strings.TrimSpace(version))
	}
	return strconv.Atoi(m[1])
}

// chooseBinaries returns the programs for a cluster: for a new one (major 0) the first, for an
// existing one the first of its version, because a server refuses the files of another
// version.
func chooseBinaries(found []Binaries, major int, dir string) (Binaries, error) {
	if major == 0 {
		return found[0], nil
	}
	have := make([]string, 0, len(found))
	for _, b := range found {
		if b.Major == major {
			return b, nil
		}
		have = append(have, fmt.Sprintf("%d in %s", b.Major, b.Dir))
	}
	return Binaries{}, fmt.Errorf("the database in %s was made by PostgreSQL %d, but this machine has only PostgreSQL %s: "+
		"install version %d (Debian: apt-get install postgresql-%d · macOS: brew install postgresql@%d) or convert the directory with pg_upgrade",
		dir, major, strings.Join(have, ", "), major, major, major)
}
