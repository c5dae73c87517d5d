package command_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/store/storetest/needs"
)

// project makes a repository with a commit, an ignored directory and a likely secret.
func project(t *testing.T) (dir, commit string) {
	t.Helper()
	needs.Git(t)
	dir = t.TempDir()
	for name, content := range map[string]string{
		".gitignore": "node_modules/\n", "main.c": "int main;", "node_modules/a/b.js": strings.Repeat("x", 5000), "dist.p12": "key",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	git := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "-b", "main")
	git("remote", "add", "origin", "https://me:hunter2@example.com/app.git")
	git("add", "-A")
	git("commit", "-qm", "first")
	return dir, git("rev-parse", "HEAD")
}

func packedIn(t *testing.T, source []byte) (names []string) {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(source), int64(len(source)))
	require.NoError(t, err)
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	return names
}

func TestSubmitPacksWhatGitHas(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	dir, commit := project(t)
	code, out, errs := d.takt(t.Context(), "submit", "-p", "ios", dir)
	require.Zero(t, code, errs)
	require.Equal(t, "build-1\n", out)
	require.Equal(t, []string{".gitignore", "dist.p12", "main.c"}, packedIn(t, d.Build("build-1").Source))
	require.Equal(t, map[string]string{"platform": "ios", "commit": commit, "branch": "main", "dirty": "false", "remote": "https://example.com/app.git"}, d.Build("build-1").Fields)
	require.Regexp(t, `^likely secrets are packed, and everybody who may read the build can read them: dist\.p12
left out, as \.gitignore or \.taktignore says: 1 file, 4\.9 KiB
    4\.9 KiB  1 file  node_modules/
takt 0\.1\.0 packed these, and --all does\. This list is shown once; --dry-run shows it again
3 files, \d+ B of source submitted: `+regexp.QuoteMeta(d.URL)+`/builds/build-1
$`, errs)

	require.NoError(t, os.WriteFile(filepath.Join(dir, ".taktignore"), []byte("*.p12\n"), 0o600))
	_, _, errs = d.takt(t.Context(), "submit", "-p", "ios", dir)
	require.Regexp(t, `^dirty: files are not as in commit `+commit[:12]+`\n3 files, \d+ B of source submitted: \S+\n$`, errs, "the list was shown")
	require.Equal(t, []string{".gitignore", ".taktignore", "main.c"}, packedIn(t, d.Build("build-2").Source))
	require.Equal(t, "true", d.Build("build-2").Fields["dirty"])

	d.ok(t, "submit", "-p", "ios", "--all", dir)
	require.Equal(t, []string{".gitignore", ".taktignore", "dist.p12", "main.c", "node_modules/", "node_modules/a/", "node_modules/a/b.js"}, packedIn(t, d.Build("build-3").Source))
	require.Equal(t, "true", d.Build("build-3").Fields["dirty"])
	require.Equal(t, commit, d.Build("build-3").Fields["commit"])
}

func TestFlagsAndCISayWhatTheSourceIs(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	dir, commit := project(t)
	fields := func(args ...string) map[string]string {
		t.Helper()
		id := strings.TrimSpace(d.ok(t, append([]string{"submit", "-p", "ios"}, args...)...))
		all := d.Build(id).Fields
		delete(all, "platform")
		return all
	}
	require.Equal(t, map[string]string{"commit": commit, "branch": "b", "dirty": "false", "remote": "ssh://git@example.com/a"},
		fields(dir, "--commit", commit[:8], "--branch", "b", "--remote", "ssh://git:hunter2@example.com/a"), "of the same commit, what git knows stays")
	require.Equal(t, map[string]string{"commit": "0123456"}, fields(dir, "--commit", "0123456", "--branch", "", "--remote="), "whether it is dirty nobody knows")
	require.Empty(t, fields(d.source(t)), "an archive")
	d.env["GITHUB_ACTIONS"], d.env["GITHUB_HEAD_REF"], d.env["GITHUB_SHA"] = "true", "fix", commit
	require.Equal(t, map[string]string{"commit": commit, "branch": "fix"}, fields(d.source(t)))
	require.Equal(t, "main", fields(dir)["branch"], "git knows better")
	require.Equal(t, map[string]string{"commit": commit, "branch": "flag"}, fields(d.source(t), "--branch", "flag"))
	for text, args := range map[string][]string{
		"must be 7 to 64 hexadecimal digits":    {"--commit", "HEAD"},
		"must be at most 255 bytes on one line": {"--branch", "a\nb"},
		"such as https://example.com/app.git":   {"--remote", "/srv/app.git"},
		"must be the URL of a repository":       {"--remote", "https://me:hunter2@ex ample.com"},
		"unknown flag: --allow-lfs":             {"--allow-lfs"},
	} {
		code, _, errs := d.takt(t.Context(), append([]string{"submit", "-p", "ios", dir}, args...)...)
		require.Equal(t, 2, code)
		require.Contains(t, errs, text)
	}
}

func TestDryRunSendsNothing(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.env["TAKT_URL"] = "http://127.0.0.1:1"
	dir, commit := project(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new\nline"), nil, 0o600))
	code, out, errs := d.takt(t.Context(), "submit", "--dry-run", dir)
	require.Zero(t, code, errs)
	require.Equal(t, "     14 B  .gitignore\n      3 B  dist.p12\n      9 B  main.c\n      0 B  \"new\\nline\"\n", out)
	require.Contains(t, errs, "    4.9 KiB  1 file  node_modules/\n")
	require.Regexp(t, `\n4 files, \d+ B of source; nothing was sent\n$`, errs)

	var got map[string]any
	code, out, errs = d.takt(t.Context(), "submit", "--dry-run", "--json", dir)
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Positive(t, got["archive_bytes"])
	delete(got, "archive_bytes")
	file := func(name string, size float64) any { return map[string]any{"name": name, "files": 1.0, "bytes": size} }
	require.Equal(t, map[string]any{
		"count": 4.0, "bytes": 26.0, "likely_secrets": []any{"dist.p12"}, "left_out": []any{file("node_modules/", 5000)},
		"files":  []any{file(".gitignore", 14), file("dist.p12", 3), file("main.c", 9), file("new\nline", 0)},
		"commit": commit, "branch": "main", "dirty": true, "remote": "https://example.com/app.git",
	}, got)

	archive := d.source(t)
	require.Equal(t, "      5 B  a\n", d.ok(t, "submit", "--dry-run", archive))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	d.fails(t, 2, "link: no worker unpacks a link to /etc/passwd", "submit", "--dry-run", dir)
}

func TestSubmitRefusesASourceThatIsNone(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	empty := t.TempDir()
	d.fails(t, 2, empty+" has no file: there is nothing to build", "submit", "-p", "ios", empty)
	archive := d.file(t, "empty.zip", string(takttest.Zip(t, map[string]string{"only/": ""})))
	d.fails(t, 2, archive+" has no file: there is nothing to build", "submit", "-p", "ios", archive)
	pipe := filepath.Join(d.dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	d.fails(t, 2, pipe+" is neither a directory nor a zip archive", "submit", "-p", "ios", pipe)
	dir, _ := project(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.psd"), []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"), 0o600))
	d.fails(t, 2, "pointers of Git LFS are there instead of files: a.psd", "submit", "-p", "ios", dir)
	d.ok(t, "submit", "-p", "ios", "--allow-lfs-pointers", dir)
	require.Equal(t, 1, d.Requests("POST /api/builds"), "the others sent nothing")
}
