package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// setupSteps are the steps of .ci/setup: what each asks apt-get for, and the programs that
// it needs, with the package that has them.
var setupSteps = map[string]struct {
	packages string // "name=program,program …", in the order of installation
	asks     []string
}{
	"postgres": {
		"postgresql-common= postgresql=postgres,initdb",
		[]string{"update", "install postgresql-common", "install postgresql"},
	},
	"git":         {"git=git,git-http-backend ca-certificates=", []string{"update", "install git ca-certificates"}},
	"curl":        {"curl=curl ca-certificates=", []string{"update", "install curl ca-certificates"}},
	"cc":          {"gcc=gcc libc6-dev=", []string{"update", "install gcc libc6-dev"}},
	"npm":         {"npm=npm", []string{"update", "install npm"}},
	"debootstrap": {"debootstrap=debootstrap", []string{"update", "install debootstrap"}},
	"chromium":    {"chromium=chromium fonts-dejavu-core=", []string{"update", "install chromium fonts-dejavu-core"}},
	"podman": {
		"podman=podman runc=runc crun= catatonit=catatonit uidmap= busybox-static=busybox",
		[]string{"update", "install podman runc crun catatonit uidmap busybox-static"},
	},
	"promtool": {"prometheus=promtool", []string{"download prometheus", "update", "download prometheus"}},
}

// setupMachine is a machine on which nothing is installed but the tools that every Debian
// has. Nothing is changed outside of its directory.
type setupMachine struct{ dir string }

func newSetupMachine(t *testing.T, packages string) setupMachine {
	t.Helper()
	m := setupMachine{t.TempDir()}
	for _, tool := range []string{"bash", "sh", "env", "cat", "cp", "mkdir", "mktemp", "mv", "rm"} {
		path, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(m.path("bin"), 0o700))
		require.NoError(t, os.Symlink(path, m.path("bin", tool)))
	}
	for name, script := range map[string]string{
		"id":    "echo 1000",
		"uname": "echo Linux",
		"sudo":  `case $1 in apt-get | env) exec "$@" ;; *) [ -t 0 ] || cat >/dev/null ;; esac`,
		// The second download succeeds, as after the first update on a new machine.
		"apt-get": `order= names=
for word; do case $word in -*) ;; *) if [ "$order" ]; then names="$names $word"; else order=$word; fi ;; esac; done
echo "$order$names" >>"$MACHINE/asked"
case $order in
update) : >"$MACHINE/updated" ;;
install) [ -e "$MACHINE/updated" ] || exit 100; for name in $names; do cp -R "$MACHINE/packages/$name/." "$MACHINE/bin"; done ;;
download) [ -e "$MACHINE/updated" ] || exit 100; : >prometheus_1_all.deb ;;
esac`,
		"dpkg": `[ "$1" = -x ] && [ -e "$2" ] && mkdir -p "$3/usr/bin" && cp "$MACHINE/packages/prometheus/promtool" "$3/usr/bin"`,
	} {
		m.program(t, script, "bin", name)
	}
	for p := range strings.FieldsSeq(packages) {
		name, programs, _ := strings.Cut(p, "=")
		require.NoError(t, os.MkdirAll(m.path("packages", name), 0o700))
		for program := range strings.FieldsFuncSeq(programs, func(r rune) bool { return r == ',' }) {
			// Of these programs only git is run: to say where its other programs are.
			m.program(t, `echo "$MACHINE/bin"`, "packages", name, program)
		}
	}
	return m
}

func (m setupMachine) path(parts ...string) string {
	return filepath.Join(append([]string{m.dir}, parts...)...)
}

func (m setupMachine) program(t *testing.T, script string, parts ...string) {
	t.Helper()
	require.NoError(t, os.WriteFile(m.path(parts...), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
}

// run runs a step and returns what it asked apt-get for.
func (m setupMachine) run(t *testing.T, step string) []string {
	t.Helper()
	require.NoError(t, os.WriteFile(m.path("asked"), nil, 0o600))
	cmd := exec.CommandContext(t.Context(), m.path("bin", "bash"), filepath.Join("..", "..", ".ci", "setup"), step)
	cmd.Env = []string{
		"PATH=" + m.path("bin"), "HOME=" + m.dir, "XDG_CACHE_HOME=" + m.path("cache"), "TMPDIR=" + m.dir,
		"MACHINE=" + m.dir, "TAKT_TEST_SETUP_SERVERS=",
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", step, out)
	asked, err := os.ReadFile(m.path("asked"))
	require.NoError(t, err)
	return slices.DeleteFunc(strings.Split(string(asked), "\n"), func(s string) bool { return s == "" })
}

func TestSetupInstallsWhatIsMissingAndNothingElse(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile(filepath.Join("..", "..", ".ci", "setup"))
	require.NoError(t, err)
	documented := regexp.MustCompile(`(?m)^#   \.ci/setup (\w+)`).FindAllStringSubmatch(string(script), -1)
	require.Len(t, documented, len(setupSteps), "each step has its case: %v", slices.Sorted(maps.Keys(setupSteps)))
	for _, match := range documented {
		step, name := setupSteps[match[1]], match[1]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newSetupMachine(t, step.packages)
			require.Equal(t, step.asks, m.run(t, name), "on a new machine")
			require.Empty(t, m.run(t, name), "when nothing is missing")

			require.NoError(t, os.Remove(m.path("updated")))
			programs, err := filepath.Glob(m.path("packages", "*", "*"))
			require.NoError(t, err)
			require.NotEmpty(t, programs)
			for _, program := range programs {
				where := m.path("bin", filepath.Base(program))
				if name == "promtool" {
					where = m.path("cache", "takt", "tools", "promtool")
				}
				require.NoError(t, os.Remove(where))
				require.Subset(t, m.run(t, name), step.asks, "without %s", program)
				require.FileExists(t, where)
			}
		})
	}
}
