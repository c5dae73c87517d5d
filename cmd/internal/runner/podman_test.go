package runner

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
	"takt/store/storetest/needs"
	"takt/store/storetest/tied"
)

// engine is podman with a storage of its own.
type engine struct {
	t   *testing.T
	env []string
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	needs.Podman(t)
	dir, err := os.MkdirTemp("", "takt") // podman wants short names
	require.NoError(t, err)
	e := &engine{t: t}
	e.env = must(needs.PodmanEnv(dir))(t)
	t.Cleanup(func() {
		e.run("rm", "--all", "--force")
		e.run("image", "rm", "--all", "--force")
		require.NoError(t, removeAll(dir))
	})
	return e
}

// run runs podman and returns what it prints.
func (e *engine) run(args ...string) string {
	e.t.Helper()
	cmd := exec.Command("podman", args...)
	cmd.Env = e.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(e.t, err, "podman %v: %s", args, errs.String())
	return strings.TrimSpace(string(out))
}

func (e *engine) has(image string) bool {
	cmd := exec.Command("podman", "image", "exists", image)
	cmd.Env = e.env
	return cmd.Run() == nil
}

// makeImage makes an image of busybox, and of some bytes that no other image has.
func (e *engine) makeImage(name string) {
	e.t.Helper()
	path := filepath.Join(e.t.TempDir(), "image.tar")
	f := must(os.Create(path))(e.t)
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise)
	require.NoError(e.t, needs.Busybox(f, map[string][]byte{"noise": noise}))
	e.run("import", "--quiet", path, name)
}

// bench makes a worker that runs script in an image.
func (e *engine) bench(image, script string, edit func(*Config, *Image)) *bench {
	e.t.Helper()
	return newBench(e.t, "", func(c *Config) {
		i := &Image{Engine: "podman", Image: image, Script: script, Network: "none", Caps: UsualCaps(), HostEnv: e.env}
		c.Command, c.KillGrace = i, time.Second
		if edit != nil {
			edit(c, i)
		}
	})
}

// TestPodmanRunsBuilds has a real engine run and end builds.
func TestPodmanRunsBuilds(t *testing.T) {
	t.Parallel()
	const image = "localhost/takt-test:1"
	e := newEngine(t)
	e.makeImage(image)
	// Without them, as without root where cgroups are of version 1, the builds say so.
	controllers := e.run("info", "--format", "{{.Host.CgroupControllers}}")
	limited := containsAll(controllers, "cpu", "memory", "pids")
	gone := func(t *testing.T) {
		t.Helper()
		require.Empty(t, e.run("ps", "--all", "--quiet"))
	}
	t.Run("within limits that hold inside", func(t *testing.T) { // one storage
		b := e.bench(image, `cd /sys/fs/cgroup; [ -e memory.max ] || cd memory
echo "limits $(cat memory.max memory.limit_in_bytes ../cpu/cpu.cfs_quota_us cpu.max ../pids/pids.max pids.max 2>/dev/null)"
cd "$TAKT_SOURCE"; cp main.txt "$TAKT_OUTPUT"`, func(c *Config, _ *Image) {
			c.Resources = Resources{CPUs: 0.5, Memory: 64 << 20}
		})
		id := b.Submit("ios", source(t), nil)
		b.start(t)
		require.Equal(t, "hello", string(b.AwaitState(t, id, store.Completed).Result))
		gone(t)
		if !limited {
			require.Contains(t, b.line(id, "not all limits hold"), "podman has no ")
			needs.Allowed(t, "limits of containers", errors.New("podman can't limit CPU and memory here, and the build said so"))
		}
		said := fmt.Sprint(b.Build(id).Logs)
		for _, limit := range []string{"67108864", "50000", "4096"} {
			require.Contains(t, said, limit)
		}
		require.Empty(t, b.line(id, "not all limits hold"))
	})
	t.Run("with few privileges", func(t *testing.T) { // one storage
		for caps, want := range map[string]string{strings.Join(UsualCaps(), " "): "00000000000000fb", "": "0000000000000000"} {
			b := e.bench(image, `cat /proc/self/status; busybox chown 1000 main.txt && echo "owned"
busybox mknod /device c 1 3 || echo "no device"; busybox ping -c 1 127.0.0.1 || echo "no raw socket"
cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max; cp main.txt "$TAKT_OUTPUT"`,
				func(_ *Config, i *Image) { i.Caps = strings.Fields(caps) })
			id := b.Submit("ios", source(t), nil)
			b.start(t)
			b.AwaitState(t, id, store.Completed)
			require.Equal(t, "NoNewPrivs:\t1", b.line(id, "NoNewPrivs"))
			require.Equal(t, "CapEff:\t"+want, b.line(id, "CapEff"))
			require.Equal(t, "CapBnd:\t"+want, b.line(id, "CapBnd"))
			require.NotEmpty(t, b.line(id, "no device"))
			require.NotEmpty(t, b.line(id, "no raw socket"))
			if caps != "" {
				require.NotEmpty(t, b.line(id, "owned"))
			}
			if strings.Contains(controllers, "pids") {
				require.Equal(t, "4096", b.line(id, "4096"))
			}
		}
	})
	for _, tt := range []struct {
		name, script, want string
		limits             func(*Config)
	}{
		{
			"too much memory", "dd if=/dev/zero of=/dev/null bs=200M count=1", "build exceeded its memory limit of 64 MiB",
			func(c *Config) { c.Resources.Memory = 64 << 20 },
		},
		{
			"too much disk, outside of the workspace", "dd if=/dev/zero of=/big bs=1M count=30; sleep 1000", "build exceeded its disk limit of 10 MiB",
			func(c *Config) { c.Resources.Disk = 10 << 20 },
		},
		{"too much time", "sleep 1000", "build exceeded its time limit of 2s", func(c *Config) { c.Timeout = 2 * time.Second }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !limited && strings.Contains(tt.want, "memory") {
				needs.Allowed(t, "limits of containers", errors.New("podman can't limit memory here"))
			}
			b := e.bench(image, tt.script, func(c *Config, _ *Image) { tt.limits(c) })
			id := b.Submit("ios", source(t), nil)
			b.start(t)
			require.Contains(t, b.AwaitState(t, id, store.Failed).ErrorMessage, tt.want)
			gone(t)
		})
	}
	for _, tt := range []struct { // one storage
		name, script string
		edit         func(*Image)
		fault        store.Fault
		want         string
	}{
		{"exit code 125 of the command", "exit 125", nil, store.FaultBuild, "build command failed: exit code 125"},
		{"exit code 126 of the command", "exit 126", nil, store.FaultBuild, "build command failed: exit code 126"},
		{"exit code 127 of the command", "no-such-tool", nil, store.FaultBuild, "build command failed: exit code 127"},
		{
			"no container", "true", func(i *Image) { i.Network = "none-such" },
			store.FaultEngine, "container engine failed: exit code 125\nError: unable to find network",
		},
		{"a container that does not start", "true", func(i *Image) { i.Engine = noRuntime(t) }, store.FaultEngine, "container engine failed: exit code 126\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := e.bench(image, tt.script, func(_ *Config, i *Image) {
				if tt.edit != nil {
					tt.edit(i)
				}
			})
			id := b.Submit("ios", source(t), nil)
			b.start(t)
			failed := b.AwaitState(t, id, store.Failed)
			require.Equal(t, tt.fault, failed.Fault)
			require.Contains(t, failed.ErrorMessage, tt.want)
			gone(t)
		})
	}
	t.Run("with parameters and secrets, which stand in no arguments", func(t *testing.T) { // one storage
		b := e.bench(image, `echo begun; until [ -e /takt/out/gate ]; do sleep 0.1; done; echo x > "$TAKT_SECRETS/KEY" || echo "read only"
printf '%s|' "$BUILD_A" "$API_TOKEN" "$OWN" "$HTTPS_PROXY" "$TAKT_COMMIT" > "$TAKT_OUTPUT"; cat "$TAKT_SECRETS/KEY" "$TAKT_PARAMS" >> "$TAKT_OUTPUT"`, func(c *Config, i *Image) {
			takes(c)
			c.AcceptEnv, i.Env = append(c.AcceptEnv, "HTTPS_PROXY", "CONTAINERS_*"), []string{"OWN=own " + image}
		})
		value := store.NewID()
		id := b.submitWith(t, api.HeldInputs{
			Params: map[string]string{"BUILD_A": "a\n" + value, "HTTPS_PROXY": "http://" + value, "CONTAINERS_STORAGE_CONF": "/no/such/file"},
			Secrets: []api.HeldSecret{
				{Name: "API_TOKEN", As: "env", Value: []byte("b\n" + value), Mask: true}, {Name: "KEY", As: "file", Value: []byte("c\n" + value), Mask: true},
			},
			Facts: api.Facts{Commit: "0123abc"},
		})
		b.start(t)
		b.Await(t, "the build runs", b.has(id, "begun"))
		said := readable(t)
		require.Contains(t, said, "--env API_TOKEN")
		require.NotContains(t, said, value)
		require.NotContains(t, said, "own "+image)
		root := filepath.Join(b.worker.cfg.StateDir, "builds", id+"-1")
		require.FileExists(t, filepath.Join(root, "secrets", "KEY"))
		touch(t, filepath.Join(root, "out", "gate"))
		got := string(b.AwaitState(t, id, store.Completed).Result)
		require.True(t, strings.HasPrefix(got, "a\n"+value+"|b\n"+value+"|own "+image+"|http://"+value+"|0123abc|c\n"+value+`{"BUILD_A":`), got)
		require.NotEmpty(t, b.line(id, "read only"))
		gone(t)
	})
	t.Run("what a machine's sudden end has left is removed", func(t *testing.T) { // one storage
		b := e.bench(image, `cp main.txt "$TAKT_OUTPUT"`, nil)
		require.NoError(t, os.MkdirAll(filepath.Join(b.worker.cfg.StateDir, "builds", "left_-here-7"), 0o700))
		e.run("create", "--name", "takt-left_-here-7", image, "sh")
		b.start(t)
		b.completes(t)
		gone(t)
	})
	t.Run("of a worker that is killed", func(t *testing.T) { // one storage
		b := newBench(t, "")
		id := b.Submit("ios", source(t), nil)
		process := startProcess(t, b.URL, b.worker.cfg.StateDir, "echo begun; sleep 1000", func(cmd *exec.Cmd) {
			cmd.Env = append(append(cmd.Env, e.env...), "RUNNER_TEST_IMAGE="+image)
		})
		b.Await(t, "the build runs", b.has(id, "begun"))
		require.NotEmpty(t, e.run("ps", "--quiet"))
		require.NoError(t, process.Process.Kill())
		require.Error(t, process.Wait())
		await(t, "the container is gone", func() bool { return e.run("ps", "--all", "--quiet") == "" })
	})
}

// noRuntime returns an engine whose OCI runtime fails.
func noRuntime(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "podman")
	script := "#!/bin/sh\nif [ \"$1\" = run ]; then shift; set -- run --runtime /bin/false \"$@\"; fi\nexec podman \"$@\"\n"
	require.NoError(t, os.WriteFile(path, []byte(script), 0o700))
	return path
}

// serveImages starts a registry and returns its address.
func serveImages(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(needs.Registry(t), "-port", "0")
	said := must(cmd.StderrPipe())(t)
	wait := must(tied.Start(cmd))(t)
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = wait() })
	lines := bufio.NewReader(said)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	_, port, found := strings.Cut(strings.TrimSpace(line), "serving on port ")
	require.True(t, found, line)
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return "127.0.0.1:" + port
}

func TestPodmanTakesTheImageOfTheJob(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	at := serveImages(t)
	base, next, foreign := at+"/acme/base:1", at+"/acme/next:1", at+"/other/base:1"
	for _, name := range []string{base, next, foreign} {
		e.makeImage(name)
		e.run("push", "--quiet", name)
	}
	size := must(strconv.ParseInt(e.run("image", "inspect", "--format", "{{.Size}}", base), 10, 64))(t)
	e.run("image", "rm", base, next, foreign)
	e.makeImage("localhost/mine:1")

	var cache string
	b := e.bench(FromJob, `cp main.txt "$TAKT_OUTPUT"`, func(c *Config, i *Image) {
		cache = filepath.Join(c.StateDir, "images")
		i.Allow, i.CacheFile, i.CacheLimit = []string{at + "/acme/*"}, cache, size*3/2
	})
	// It takes no build while the controller names an image that it must not use.
	b.Name(foreign)
	first := b.Submit("ios", source(t), nil)
	b.start(t)
	b.Await(t, "the worker says so", b.reports("critical"))
	require.Zero(t, b.Polls())
	b.Name(base)
	b.AwaitState(t, first, store.Completed)
	require.Equal(t, 1, b.Build(first).Attempt)
	await(t, "the image is pulled ahead", func() bool { return e.has(base) })
	b.completes(t)

	// A second one is more than the cache may hold.
	b.Name(next)
	b.completes(t)
	require.True(t, e.has(next))
	require.False(t, e.has(base))
	require.True(t, e.has("localhost/mine:1"), "what others made is left alone")
	kept := must(os.ReadFile(cache))(t)
	require.Equal(t, next+"\n", string(kept))

	// What is not allowed is given back, and not pulled.
	b.Name(foreign)
	id := b.Submit("ios", source(t), nil)
	b.Await(t, "the worker says so", b.reports("critical"))
	require.Contains(t, b.Workers()[0].Report.Checks[0].Message, "other/base:1\": not one that this worker's --allow-image names")
	require.Equal(t, store.Pending, b.Build(id).State)
	require.False(t, e.has(foreign))
	b.Name(next)
	b.AwaitState(t, id, store.Completed)

	// So is a build whose image can't be pulled, until it can.
	late := at + "/acme/late:1"
	b.Name(late)
	id = b.Submit("ios", source(t), nil)
	b.Await(t, "the worker says so", func() bool { return strings.Contains(b.Workers()[0].Report.Checks[0].Message, "late:1\": pulling it:") })
	require.Equal(t, store.Pending, b.Build(id).State)
	e.makeImage(late)
	e.run("push", "--quiet", late)
	b.AwaitState(t, id, store.Completed)
}
