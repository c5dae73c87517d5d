package install

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
)

// TestInstallRelease builds a release of two systems twice: in two places, and this machine's
// the second time with an empty cache, which compiles everything anew. It installs it as
// docs/operate.md says, and runs it.
func TestInstallRelease(t *testing.T) {
	installTest(t)
	const version = "1.2.3" // as in docs/operate.md
	dir := t.TempDir()
	run := func(in string, settings []string, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), settings...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return strings.TrimSpace(string(out))
	}
	root, err := filepath.Abs(takttest.File())
	require.NoError(t, err)
	build := func(place, out string, settings ...string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(place), 0o700))
		run(root, nil, "git", "clone", "--quiet", root, place)
		run(place, settings, "make", "--no-print-directory", "release", "VERSION="+version, "RELEASES="+out)
	}
	here, other := "linux/"+runtime.GOARCH, "darwin/arm64" // the Macs of today
	build(filepath.Join(dir, "a"), filepath.Join(dir, "first"), "TARGETS="+here+" "+other)
	far := filepath.Join(dir, "a longer", "way", "to the clone")
	build(far, filepath.Join(dir, "second"), "TZ=Asia/Tokyo", "TARGETS="+here, "GOCACHE="+filepath.Join(dir, "cache"))
	run(far, []string{"TARGETS=" + other}, filepath.Join(".ci", "release"), version, filepath.Join(dir, "second", "other"))

	first := filepath.Join(dir, "first", version)
	sums, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(sums), "\n"))
	modules := process.ReadWord(filepath.Join(first, "takt-"+version+"-modules.tsv"))
	require.Contains(t, modules, "\ngithub.com/jackc/pgx/v5\tv5.")
	for line := range strings.Lines(modules) {
		cells := strings.Split(strings.TrimSpace(line), "\t")
		require.Len(t, cells, 4, line)
		require.NotEmpty(t, cells[3], line)
	}
	for target, second := range map[string]string{here: version, other: "other"} {
		archive := "takt-" + version + "-" + strings.ReplaceAll(target, "/", "-") + ".tar.gz"
		run(dir, nil, "cmp", filepath.Join(first, archive), filepath.Join(dir, "second", second, archive))
		list := run(first, nil, "tar", "-tzf", archive) + "\n"
		for _, file := range []string{"takt", "LICENSE", "README.md", "THIRD_PARTY.md", "CHANGELOG.md", "docs/operate.md", "deploy/mac/dev.takt.worker.plist"} {
			require.Contains(t, list, strings.TrimSuffix(archive, ".tar.gz")+"/"+file+"\n", archive)
		}
	}

	var install string
	for _, b := range takttest.ShellBlocks(t) {
		if b.Page == "operate.md" && strings.Contains(b.Text, "SHA256SUMS") {
			install = b.Text
		}
	}
	bin := filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	install = replaced(t, install, "sudo ", "", "/usr/local/bin", bin, "linux-amd64", "linux-"+runtime.GOARCH)
	commit := run(root, nil, "git", "rev-parse", "HEAD")
	said := run(first, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, "bash", "-euo", "pipefail", "-c", install)
	require.Contains(t, said, "takt "+version+" (commit "+commit+", "+runtime.Version()+", linux/"+runtime.GOARCH+")")

	env := takttest.NewEnv(t)
	env.Takt = filepath.Join(bin, "takt")
	c := env.StartController("takt")
	health := takttest.Call(t, c, api.ShowHealth, api.None{})
	require.Equal(t, version, health.Version)
	require.Equal(t, commit, health.Commit)
	text, err := c.Client.Metrics(t.Context())
	require.NoError(t, err)
	require.Contains(t, text, `takt_build_info{commit="`+commit+`",go="`+runtime.Version()+`",version="`+version+`"} 1`)
	var about struct{ Version, Commit string }
	require.NoError(t, json.Unmarshal([]byte(run(dir, nil, env.Takt, "version", "--json")), &about))
	require.Equal(t, commit, about.Commit)
}
