package runner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestImagePlan(t *testing.T) {
	t.Parallel()
	w := Workspace{
		BuildID: "b1", Platform: "ios", Attempt: 2, Source: "/w/b1-2/source", Certs: "/w/b1-2/certs",
		Output: "/w/b1-2/out/result", Temp: "/w/b1-2/tmp",
	}
	bare := w
	bare.Certs = ""
	vars := []string{
		"--env", "TAKT_BUILD_ID", "--env", "TAKT_PLATFORM", "--env", "TAKT_ATTEMPT", "--env", "TAKT_SOURCE", "--env", "TAKT_OUTPUT",
	}
	values := []string{"TAKT_BUILD_ID=b1", "TAKT_PLATFORM=ios", "TAKT_ATTEMPT=2", "TAKT_SOURCE=/takt/source", "TAKT_OUTPUT=/takt/out/result"}
	w.Params, w.Secrets, w.Vars, w.envFile = "/w/b1-2/params.json", "/w/b1-2/secrets", []string{"BUILD_A=a\nb", "HTTPS_PROXY=p"}, "/w/b1-2/env"
	start := []string{
		"docker", "run", "--init", "--name", "takt-b1-2", "--label", "takt.build=b1",
		"--security-opt", "no-new-privileges", "--cap-drop", "ALL",
		"--volume", "/w/b1-2/source:/takt/source", "--volume", "/w/b1-2/out:/takt/out",
	}
	join := func(parts ...[]string) []string {
		var all []string
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	tests := []struct {
		name  string
		image *Image
		space Workspace
		want  []string
		vars  []string
		file  string
	}{
		{
			"the image's own command",
			&Image{Engine: "docker", Image: "img:1"},
			bare,
			join(start, []string{"--workdir", "/takt/source"}, vars, []string{"img:1"}),
			values,
			"",
		},
		{
			"everything",
			&Image{Engine: "docker", Image: "img:1", Script: "make app", Network: "none", User: "1000:1000", Caps: []string{"CHOWN", "SETUID"}, Env: []string{"CI=true", "PATH=/opt"}},
			w,
			join(start, []string{
				"--cap-add", "CHOWN", "--cap-add", "SETUID", "--pids-limit", "4096",
				"--volume", "/w/b1-2/certs:/takt/certs:ro", "--volume", "/w/b1-2/params.json:/takt/params.json:ro",
				"--volume", "/w/b1-2/secrets:/takt/secrets:ro", "--workdir", "/takt/source",
				"--cpus", "1.5", "--memory", "1073741824", "--memory-swap", "1073741824",
				"--network", "none", "--user", "1000:1000", "--env", "CI",
			}, vars, []string{
				"--env", "TAKT_CERTS", "--env", "TAKT_PARAMS", "--env", "TAKT_SECRETS", "--env", "BUILD_A", "--env-file", "/w/b1-2/env",
				"img:1", "sh", "-c", "make app",
			}),
			join([]string{"CI=true"}, values, []string{"TAKT_CERTS=/takt/certs", "TAKT_PARAMS=/takt/params.json", "TAKT_SECRETS=/takt/secrets", "BUILD_A=a\nb"}),
			"PATH=/opt\nHTTPS_PROXY=p\n",
		},
	}
	tests[1].image.limits, tests[1].image.pids = Resources{CPUs: 1.5, Memory: 1 << 30}, true
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.image.HostEnv = []string{"PATH=/bin", "HOME=/root"}
			plan := tt.image.Plan(tt.space)
			require.Equal(t, tt.want, plan.Argv)
			require.Equal(t, []string{"PATH=/bin", "HOME=/root", "PWD=/w/b1-2/source"}, plan.Env)
			require.Equal(t, tt.vars, plan.vars)
			require.Equal(t, tt.file, plan.envFile)
			require.Equal(t, []string{"docker", "rm", "--force", "--volumes", "takt-b1-2"}, plan.Cleanup)
		})
	}
}

// TestBuildInAnImage runs builds with an engine that is a shell script: it does
// what a container would to the mounted directories.
func TestBuildInAnImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	engine := filepath.Join(dir, "engine")
	require.NoError(t, os.WriteFile(engine, []byte(`#!/bin/sh
echo "$@" >> `+dir+`/calls
[ "$1" = run ] || exit 0
for arg; do case "$arg" in
	*:/takt/source) source=${arg%:*} ;;
	*:/takt/out) out=${arg%:*} ;;
esac; done
cp "$source/main.txt" "$out/result"
`), 0o700))
	b, id := building(t, "", func(c *Config) {
		c.Command = &Image{Engine: engine, Image: "img", HostEnv: []string{"PATH=" + os.Getenv("PATH")}}
	})
	require.Equal(t, "hello", string(b.AwaitState(t, id, store.Completed).Result))
	calls := must(os.ReadFile(filepath.Join(dir, "calls")))(t)
	require.Contains(t, string(calls), "\nrm --force --volumes takt-"+id+"-1\n")
}

func TestFindEngine(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	_, err := FindEngine(t.Context(), nil)
	require.ErrorContains(t, err, "docker, podman")

	install := func(name, script string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
		return path
	}
	docker := install("docker", "echo Cannot connect to the Docker daemon >&2; exit 1")
	found := must(FindEngine(t.Context(), nil))(t)
	require.Equal(t, docker, found, "its check reports the error")
	podman := install("podman", `[ "$1" = info ]`)
	found = must(FindEngine(t.Context(), nil))(t)
	require.Equal(t, podman, found, "a client without a daemon hides no other engine")
	install("docker", "exit 0")
	found = must(FindEngine(t.Context(), nil))(t)
	require.Equal(t, docker, found)
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	err := Config{Platforms: []store.Platform{"Windows"}, Concurrency: 100, PollWait: 1}.withDefaults().Validate()
	for _, fault := range []string{"name", "state directory", "command or an image", "concurrency 100", "poll wait", `"Windows"`} {
		require.ErrorContains(t, err, fault)
	}
}
