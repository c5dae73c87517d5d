package runner

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/http/api"
	"takt/store"
)

func TestBuild(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
		echo "dir $(basename "$PWD") id $TAKT_BUILD_ID platform $TAKT_PLATFORM attempt $TAKT_ATTEMPT"
		echo careful >&2
		[ "$PWD" = "$TAKT_SOURCE" ] && [ -x tool.sh ] && [ ! -x main.txt ] && [ -d "$TMPDIR" ] || exit 9
		[ "$(stat -c %a "$TAKT_CERTS")" = 700 ] || exit 8
		env > env.txt
		cat main.txt "$TAKT_CERTS/p.txt" env.txt > "$TAKT_OUTPUT"`)
	certs := archive(t, entry{name: "p.txt", content: "secret\n"})
	zip := archive(t, entry{name: "main.txt", content: "hello\n"}, entry{name: "tool.sh", content: "", mode: 0o755})
	id := b.Submit("ios", zip, certs)
	b.start(t)
	got := b.AwaitState(t, id, store.Completed)
	require.Equal(t, []api.LogMessage{
		{Level: "info", Message: "Build submitted"},
		{Level: "info", Message: "[takt] attempt 1 begins on bench"},
		{Level: "info", Message: "[takt] source unpacked: 2 files, 6 bytes"},
	}, got.Logs[:3])
	require.Contains(t, got.Logs, api.LogMessage{Level: "info", Message: "dir source id " + id + " platform ios attempt 1"})
	require.Contains(t, got.Logs, api.LogMessage{Level: "warn", Message: "careful"})
	result := string(got.Result)
	require.True(t, strings.HasPrefix(result, "hello\nsecret\n"), result)
	require.Contains(t, result, "HOME=/nowhere")
	for _, secret := range []string{"TAKT_API_KEY", b.Workers()[0].ID} {
		require.NotContains(t, result, secret)
	}
	b.end()
	require.Empty(t, must(os.ReadDir(filepath.Join(b.worker.cfg.StateDir, "builds")))(t))
	require.True(t, b.Workers()[0].Gone)
}

func TestBuildThatFails(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3000)
	tests := []struct {
		name, script string
		want         string
		edit         func(*Config)
	}{
		{"exit code and the last lines of stderr", "echo fine; echo one >&2; echo two >&2; exit 3", "build command failed: exit code 3\none\ntwo", nil},
		{"killed by a signal", "kill -9 $$", "build command failed: ended by signal 9 (killed)", nil},
		{"no output", "true", "build command produced no file at $TAKT_OUTPUT", nil},
		{"two outputs", `touch "$TAKT_OUTPUT.a" "$TAKT_OUTPUT.b"`, "build command produced no file at $TAKT_OUTPUT", nil},
		{"output is a link with an extension", `ln -s /etc/passwd "$TAKT_OUTPUT.txt"`, "what the build command left at $TAKT_OUTPUT is not a regular file", nil},
		{"output is a link", `ln -s /etc/passwd "$TAKT_OUTPUT"`, "what the build command left at $TAKT_OUTPUT is not a regular file", nil},
		{"only the end of a long complaint", "echo " + long + " >&2; exit 1", "build command failed: exit code 1\n…" + long[:tailBytes], nil},
		{"over its time limit", "echo going >&2; sleep 100", "build exceeded its time limit of 300ms\ngoing", func(c *Config) { c.Timeout = 300 * time.Millisecond }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, tt.script, func(c *Config) {
				if tt.edit != nil {
					tt.edit(c)
				}
			})
			id := b.Submit("android", source(t), nil)
			b.start(t)
			got := b.AwaitState(t, id, store.Failed)
			require.Equal(t, tt.want, got.ErrorMessage)
			require.Equal(t, 1, got.Uploads)
		})
	}
}

func TestBuildOfABadArchive(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name          string
		source, certs []byte
		want          string
	}{
		{"source is no zip", []byte("not a zip"), nil, "source: not a zip archive"},
		{"source escapes", archive(t, entry{name: "../evil", content: "x"}), nil, `source: entry "../evil": name leaves the archive or is not plain`},
		{"certificates hold a link", source(t), archive(t, entry{name: "l", content: "x", mode: os.ModeSymlink | 0o777}), `certificates: entry "l": neither file nor directory`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "exit 0")
			id := b.Submit("ios", tt.source, tt.certs)
			b.start(t)
			require.Contains(t, b.AwaitState(t, id, store.Failed).ErrorMessage, tt.want)
		})
	}
}

func TestBuildIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, `cp main.txt "$TAKT_OUTPUT"`, func(c *Config) { c.Keep = true })
	id := b.Submit("ios", source(t), archive(t, entry{name: "p.txt", content: "secret"}))
	b.start(t)
	b.AwaitState(t, id, store.Completed)
	b.end()
	root := filepath.Join(b.worker.cfg.StateDir, "builds", id+"-1")
	require.FileExists(t, filepath.Join(root, "source", "main.txt"))
	require.NoDirExists(t, filepath.Join(root, "certs"))
}

func TestBuildInAReadOnlyTree(t *testing.T) {
	t.Parallel()
	b := newBench(t, `mkdir -p deep/er; chmod 0500 deep/er deep; cp main.txt "$TAKT_OUTPUT"`)
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	b.AwaitState(t, id, store.Completed)
	b.end()
	require.NoDirExists(t, filepath.Join(b.worker.cfg.StateDir, "builds", id+"-1"))
}

func TestTwoBuildsAtOnce(t *testing.T) {
	t.Parallel()
	// Each waits for the other to be there.
	meet := t.TempDir()
	b := newBench(t, `touch `+meet+`/$TAKT_BUILD_ID; until [ $(ls `+meet+` | wc -l) = 2 ]; do sleep 0.01; done; cp main.txt "$TAKT_OUTPUT"`,
		func(c *Config) { c.Concurrency = 2 })
	one, two := b.Submit("ios", source(t), nil), b.Submit("ios", source(t), nil)
	b.start(t)
	b.AwaitState(t, one, store.Completed)
	b.AwaitState(t, two, store.Completed)
	require.Equal(t, 2, b.Workers()[0].Slots)
}

// A worker that does not use the token of a heartbeat registers again after the build.
func TestBeatsRenewTheTokenOfTheNextPoll(t *testing.T) {
	t.Parallel()
	gate := t.TempDir() + "/go"
	b := newBench(t, `until [ -e `+gate+` ]; do sleep 0.01; done; cp main.txt "$TAKT_OUTPUT"`)
	id := b.Submit("ios", source(t), nil)
	b.start(t)
	b.Await(t, "heartbeats come", func() bool { return b.Build(id).Heartbeats > 0 })
	b.Expire()
	before := b.Build(id).Heartbeats
	b.Await(t, "it sends heartbeats again", func() bool { return b.Build(id).Heartbeats > before+1 })
	refused := make(chan struct{}, 1)
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool { // so that no renewal is lost when the build ends
		if !strings.HasSuffix(r.URL.Path, "/heartbeat") {
			return false
		}
		controllertest.Problem(w, http.StatusServiceUnavailable, store.Unavailable, "Later")
		select {
		case refused <- struct{}{}:
		default:
		}
		return true
	})
	<-refused
	touch(t, gate)
	b.AwaitState(t, id, store.Completed)
	b.completes(t)
	require.Equal(t, 1, b.Workers()[0].Registrations)
}
