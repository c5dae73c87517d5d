package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/store/storetest"
	"takt/store/storetest/needs"
)

// podman runs podman with a storage of its own.
type podman struct {
	t   *testing.T
	env []string
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	needs.Podman(t)
	dir, err := os.MkdirTemp("", "takt") // podman wants short names
	require.NoError(t, err)
	p := &podman{t: t}
	p.env, err = needs.PodmanEnv(dir)
	require.NoError(t, err)
	p.env = append(p.env, "TMPDIR="+dir, "DISABLE_HC_SYSTEMD=true") // the test asks for health itself
	t.Cleanup(func() {
		for _, args := range [][]string{{"rm", "--all", "--force"}, {"volume", "rm", "--all", "--force"}, {"image", "rm", "--all", "--force"}} {
			_, _ = p.try(args...)
		}
		_ = exec.Command("chmod", "-R", "u+rwX", dir).Run()
		require.NoError(t, os.RemoveAll(dir))
	})
	return p
}

// command is podman, or a program that starts it.
func (p *podman) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = p.env
	return cmd
}

func (p *podman) try(args ...string) (string, error) {
	cmd := p.command("podman", args...)
	var said, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &errs
	if err := cmd.Run(); err != nil {
		return said.String(), fmt.Errorf("podman %v: %w\n%s", args, err, errs.String())
	}
	return strings.TrimSpace(said.String()), nil
}

func (p *podman) run(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	require.NoError(p.t, err)
	return out
}

// importDebian makes an image of a new Debian, which can install packages.
func (p *podman) importDebian(name string) {
	p.t.Helper()
	archive := filepath.Join(p.t.TempDir(), "debian.tar")
	script := exec.CommandContext(p.t.Context(), filepath.Join(".ci", "debian-image"), archive)
	script.Dir = takttest.File()
	out, err := script.CombinedOutput()
	require.NoError(p.t, err, "%s", out)
	out, err = p.command("podman", "import", "--quiet", archive, name).CombinedOutput()
	require.NoError(p.t, err, "%s", out)
}

// TestInstallImages builds both images as operators do, and runs a build with them, each in a
// container without capabilities and with a read-only root file system.
func TestInstallImages(t *testing.T) {
	installTest(t)
	require.Zero(t, os.Geteuid(), "make test-image needs root, to make a Debian in a directory")
	const image, version = "localhost/takt-test", "1.2.3"
	p := newPodman(t)
	p.importDebian("localhost/debian:test")
	build := p.command("make", "--no-print-directory", "image", "IMAGE="+image, "VERSION="+version)
	build.Dir = takttest.File()
	build.Env = append(os.Environ(), p.env[1:]...)
	build.Env = append(build.Env, "HOME="+os.Getenv("HOME"), "ENGINE=podman", "BASE=localhost/debian:test", "BUILD_FLAGS=--network host")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	// The database is reached by its socket, so that the containers need no network.
	db := storetest.Config(t)
	require.NoError(t, os.Chmod(db.Host, 0o711))
	hardened := []string{"--detach", "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--env", "TAKT_API_KEY=0123456789abcdef"}
	start := func(name, network, image string, args ...string) {
		t.Helper()
		all := append([]string{"run", "--name", name, "--network", network}, hardened...)
		p.run(append(append(all, args...), image)...)
		t.Cleanup(func() {
			if t.Failed() {
				said, err := p.command("podman", "logs", name).CombinedOutput()
				t.Logf("%s said (%v):\n%s", name, err, said)
			}
		})
	}
	start("controller", "none", image+":"+version, "--read-only-tmpfs=false", "--volume", db.Host+":/database",
		"--env", "TAKT_DATABASE_URL=host=/database user="+db.User+" dbname="+db.Database, "--env", "TAKT_ENCRYPTION_KEY="+strings.Repeat("A", 42)+"E=")
	require.Eventually(t, func() bool {
		_, err := p.try("healthcheck", "run", "controller")
		return err == nil
	}, takttest.Patience, 200*time.Millisecond, "it is healthy")
	requireConfined(t, p, "controller")
	var about struct{ Version, Commit string }
	require.NoError(t, json.Unmarshal([]byte(p.run("exec", "controller", "takt", "version", "--json")), &about))
	require.Equal(t, version, about.Version)
	require.Len(t, about.Commit, 40)
	_, err = p.try("exec", "--env", "TAKT_URL=http://127.0.0.1:1", "controller", "takt", "ready")
	require.ErrorContains(t, err, "exit status 5", "the check fails without a controller")

	start("worker", "container:controller", image+"-worker:"+version)
	requireConfined(t, p, "worker")
	got := p.run("exec", "worker", "sh", "-euc", `cd "$(mktemp -d)"
mkdir source
echo 'git --version >"$TAKT_OUTPUT"; id -u >>"$TAKT_OUTPUT"' >source/build.sh
takt submit --platform ios --follow --download result ./source >&2
cat result`)
	require.Regexp(t, `^git version [0-9.]+\n10001$`, got)

	for _, name := range []string{"worker", "controller"} {
		p.run("stop", "--time", "60", name)
		require.Equal(t, "0", p.run("inspect", "--format", "{{.State.ExitCode}}", name), "%s stops in order", name)
	}
}

// requireConfined checks that the first process of a container runs as user 10001 without
// capabilities, and has a read-only root file system.
func requireConfined(t *testing.T, p *podman, name string) {
	t.Helper()
	proc := filepath.Join("/proc", p.run("inspect", "--format", "{{.State.Pid}}", name))
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	require.NoError(t, err)
	require.Contains(t, string(status), "Uid:\t10001\t10001\t10001\t10001\n")
	require.Contains(t, string(status), "CapBnd:\t0000000000000000\n")
	require.Contains(t, string(status), "NoNewPrivs:\t1\n")
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^\d+ \d+ \S+ \S+ / ro\b`, string(mounts))
}

// TestInstallComposeFile makes the secrets as docs/operate.md says, and has docker-compose
// read the file with them.
func TestInstallComposeFile(t *testing.T) {
	installTest(t)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(takttest.File("deploy"))))
	var script string
	for _, b := range takttest.ShellBlocks(t) {
		if b.Page == "operate.md" && strings.Contains(b.Text, "deploy/.env") && b.NotRun == "" {
			script = b.Text
		}
	}
	require.NotEmpty(t, script)
	out, err := exec.CommandContext(t.Context(), "sh", "-euc", "cd \"$1\"\n"+script, "sh", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	info, err := os.Stat(filepath.Join(dir, "deploy", ".env"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	compose := exec.CommandContext(t.Context(), "docker-compose", "config")
	compose.Dir = filepath.Join(dir, "deploy")
	out, err = compose.Output()
	require.NoError(t, err)
	for _, service := range []string{"controller-1", "controller-2", "worker", "caddy", "postgres", "s3", "prometheus", "grafana"} {
		require.Contains(t, string(out), "\n  "+service+":\n")
	}
}
