package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/store"
)

// terminal is somebody at a terminal with a controller.
type terminal struct {
	*controllertest.Controller
	env map[string]string
	dir string
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	d := &terminal{Controller: controllertest.Start(t), dir: t.TempDir()}
	d.env = map[string]string{
		"TAKT_URL": d.URL, "TAKT_API_KEY": controllertest.APIKey, "TAKT_ADMIN_KEY": controllertest.AdminKey,
		"XDG_STATE_HOME": d.dir, "PATH": os.Getenv("PATH"),
	}
	return d
}

// takt runs a command and returns what it did.
func (d *terminal) takt(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := command.New(func(name string) (string, bool) {
		value, ok := d.env[name]
		return value, ok
	})
	code = cli.Execute(ctx, root, args, &out, &errs)
	return code, out.String(), errs.String()
}

// ok runs a command that must succeed and returns its output.
func (d *terminal) ok(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := d.takt(t.Context(), args...)
	require.Zero(t, code, errs)
	return out
}

// fails runs a command that must end with this exit code and text on standard error.
func (d *terminal) fails(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	got, _, errs := d.takt(t.Context(), args...)
	require.Equal(t, code, got, errs)
	require.Contains(t, errs, text)
}

func (d *terminal) file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(d.dir, name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// source writes a zip archive.
func (d *terminal) source(t *testing.T) string {
	t.Helper()
	return d.file(t, "s.zip", string(takttest.Zip(t, map[string]string{"a": "hello"})))
}

// finish ends a build as its worker would.
func (d *terminal) finish(id string, state store.BuildState, result, reason string) {
	d.Edit(id, func(b *controllertest.Build) {
		b.State, b.Result, b.ErrorMessage = state, []byte(result), reason
		b.Logs = append(b.Logs, api.LogMessage{Level: "warn", Message: "the \x1b[31mend"})
	})
}

func TestSubmitAndLookWithoutTheKey(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	id := strings.TrimSpace(d.ok(t, "submit", "--platform", "ios", d.source(t), "--certs", d.file(t, "c.zip", "certs")))
	require.Equal(t, takttest.Zip(t, map[string]string{"a": "hello"}), d.Build(id).Source)
	require.Equal(t, "certs", string(d.Build(id).Certs))
	delete(d.env, "TAKT_API_KEY")
	require.Contains(t, d.ok(t, "status", id), "pending")
	d.finish(id, store.Completed, "app", "")
	require.Contains(t, d.ok(t, "logs", id), "Build submitted\n")
	require.Equal(t, "the end\n", d.ok(t, "logs", id, "--tail", "1", "--raw"))
	require.Equal(t, "the end\n", d.ok(t, "logs", id, "-f", "-n", "1", "--raw"))
	out := filepath.Join(d.dir, "out.ipa")
	require.Contains(t, d.ok(t, "download", id, "-o", out), "3 B, SHA-256 right")
	content, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, "app", string(content))
	require.NoFileExists(t, out+".part")
	d.fails(t, 4, "Missing X-API-Key", "list")
}

func TestSubmitSaysWhatNoWorkerHas(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	_, out, errs := d.takt(t.Context(), "submit", "-p", "linux", "--require", "gpu, cuda >= 12", "--prefer", "pool=fast", d.source(t))
	id := strings.TrimSpace(out)
	require.Contains(t, errs, id+": pending. There is no worker for linux with gpu, cuda >= 12.")
	require.Equal(t, []string{"linux", "gpu, cuda >= 12", "pool=fast"}, []string{d.Build(id).Platform, d.Build(id).Require, d.Build(id).Prefer})
	require.Contains(t, d.ok(t, "status", id), "require    gpu, cuda >= 12\nprefer     pool=fast\n")
	_, _, errs = d.takt(t.Context(), "submit", "-p", "ios", d.source(t))
	require.NotContains(t, errs, "pending")
	d.fails(t, 2, "--require: ", "submit", "-p", "ios", "--require", "a=>b", d.source(t))
	d.fails(t, 2, "--prefer: ", "submit", "-p", "ios", "--prefer", "(", d.source(t))
	d.fails(t, 2, `"iOS" is not a platform`, "submit", "-p", "iOS", d.source(t))
}

func TestSubmitSendsWhatGoesIntoTheBuild(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.env["BUILD_NUMBER"] = "42"
	file := d.file(t, "env", "# comment\r\n\nAPP_A=from the file\r\nAPP_B= a=b \n")
	object := d.file(t, "env.json", `{"APP_C":"two\nlines"}`)
	submit := func(flags ...string) []string {
		return append([]string{"submit", "-p", "ios", d.source(t)}, flags...)
	}
	code, out, errs := d.takt(t.Context(), submit("--env", "BUILD_NUMBER", "--env", "APP_A=", "--env-file", file, "--env-file", object, "--env", "APP_TOKEN=x",
		"--env-optional", "--secret", "TOKEN", "--secret-file", "CERT", "--timeout", "90m", "--max-attempts", "2", "--retry-on", "143,75")...)
	require.Zero(t, code, errs)
	id := strings.TrimSpace(out)
	require.Equal(t, &store.Inputs{
		Params:         store.Params{"BUILD_NUMBER": "42", "APP_A": "", "APP_B": " a=b ", "APP_C": "two\nlines", "APP_TOKEN": "x"},
		ParamsOptional: true, Secrets: map[string]string{"TOKEN": "env", "CERT": "file"}, Timeout: 90 * time.Minute, MaxAttempts: 2, RetryOn: []int{75, 143},
	}, d.Build(id).Submitted)
	require.Contains(t, errs, "everybody who can see the build can read the parameter APP_TOKEN; takt secret keeps secrets")
	require.NotContains(t, errs, "BUILD_NUMBER")
	status := d.ok(t, "status", id)
	for _, row := range []string{"env           BUILD_NUMBER=42\n", "secret        CERT (file)\n", "timeout       1h30m\n", "max attempts  2\n", "retry on      75 143\n"} {
		require.Contains(t, status, row)
	}

	again := strings.TrimSpace(d.ok(t, "retry", id, "--env", "BUILD_NUMBER=43", "--unset-env", "APP_TOKEN"))
	require.Equal(t, "43", d.Build(again).Submitted.Params["BUILD_NUMBER"])
	require.NotContains(t, d.Build(again).Submitted.Params, "APP_TOKEN")

	for text, flags := range map[string][]string{
		"--env GONE: this variable is not set":                 {"--env", "GONE"},
		`--env: "a" is no name`:                                {"--env", "a=1"},
		"--env: no build may set PATH":                         {"--env", "PATH=/tmp"},
		"line 1 is not NAME=value":                             {"--env-file", d.file(t, "bad", "hunter2")},
		"no such file":                                         {"--env-file", filepath.Join(d.dir, "gone")},
		"--secret TOKEN: it is there twice":                    {"--secret", "TOKEN", "--secret-file", "TOKEN"},
		`--secret: "token" is no name`:                         {"--secret", "token"},
		"--timeout: 25h0m0s is not 1s to 24h in whole seconds": {"--timeout", "25h"},
		"--timeout: 1.5s is not":                               {"--timeout", "1.5s"},
		"--max-attempts: 11 is not between 1 and 10":           {"--max-attempts", "11"},
		"--retry-on: want at most 16 exit codes from 1 to 255": {"--retry-on", "0"},
	} {
		d.fails(t, 2, text, submit(flags...)...)
	}
	d.fails(t, 2, "--unset-env A: --env sets it", "retry", id, "--env", "A=1", "--unset-env", "A")
}

func TestSubmitCancelsABuildWhoseInputsTheControllerIgnored(t *testing.T) {
	t.Parallel()
	for flag, args := range map[string][]string{
		"--env": {"--env", "A=1"}, "--secret": {"--secret", "A"}, "--timeout": {"--timeout", "1h"}, "--max-attempts": {"--max-attempts", "1"}, "--retry-on": {"--retry-on", "75"},
	} {
		d := newTerminal(t)
		d.Earlier()
		code, out, errs := d.takt(t.Context(), append([]string{"submit", "-p", "ios", d.source(t)}, args...)...)
		require.Equal(t, 1, code)
		require.Empty(t, out, "no id, which a script would wait for")
		require.Contains(t, errs, "the controller is older than this program and does not know "+flag+"; build build-1 was cancelled")
		require.Equal(t, store.Cancelled, d.Build("build-1").State)
	}
	d := newTerminal(t)
	d.Earlier()
	id := strings.TrimSpace(d.ok(t, "submit", "-p", "ios", d.source(t)))
	d.finish(id, store.Failed, "", "no")
	d.fails(t, 1, "does not know --env; build build-2 was cancelled", "retry", id, "--env", "A=1")
}

func TestBuildsByTheBeginningOfTheirIDs(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	for range 10 {
		d.Submit("ios", nil, nil)
	}
	d.fails(t, 2, "10 builds begin with buil: build-10, build-9, build-8, build-7, build-6", "cancel", "buil")
	d.fails(t, 2, "give at least 4 characters", "cancel", "bui")
	require.Equal(t, "build-11\n", d.ok(t, "submit", "-p", "ios", d.source(t)))
	require.Contains(t, d.ok(t, "status", "build-9"), "build      build-9\n")
	require.Contains(t, d.ok(t, "status", "build-1"), "build      build-11\n", "the one that was submitted here")
	require.Equal(t, "build-2 cancelled\n", d.ok(t, "cancel", "build-2"))
	require.Contains(t, d.ok(t, "list", "--status", "cancelled"), "build-2")
	require.NotContains(t, d.ok(t, "list", "--status", "failed"), "build-2")
	d.fails(t, 3, "There is no build nosuch; takt list shows the newest", "logs", "nosuch")
}

func TestWrongUseIsToldBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.env["TAKT_URL"] = "http://127.0.0.1:1"
	for text, args := range map[string][]string{
		`unknown command "nosuch"`:                      {"help", "nosuch"},
		`unknown command "pyth"`:                        {"completion", "pyth"},
		`unknown command "verfy"; did you mean verify?`: {"storage", "verfy"},
		"11 is not between -10 and 10":                  {"submit", "-p", "ios", "--priority", "11", d.source(t)},
		"must be seconds, or with a unit":               {"worker", "--timeout", "soon"},
	} {
		d.fails(t, cli.ExitUsage, text, args...)
	}
	code, out, errs := d.takt(t.Context(), "list", "--json")
	require.Equal(t, cli.ExitUnavailable, code)
	require.Empty(t, out)
	lines := strings.Split(strings.TrimSpace(errs), "\n")
	var problem api.Problem
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &problem))
	require.Equal(t, "unavailable", problem.Code)
	require.Contains(t, problem.Error, "http://127.0.0.1:1 does not answer. Is takt serve running?")
}

func TestSubmitADirectoryAndWait(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	src := filepath.Join(d.dir, "src")
	require.NoError(t, os.Mkdir(src, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(src, "a"), []byte("hello"), 0o600))
	out := filepath.Join(d.dir, "app")
	go func() {
		d.Await(t, "the build is there", func() bool { return d.Build("build-1").ID != "" })
		d.finish("build-1", store.Completed, "app", "")
	}()
	shown := d.ok(t, "submit", "-p", "android", "--follow", "--download", out, src)
	require.True(t, strings.HasPrefix(shown, "build-1\n"), shown)
	require.Contains(t, shown, "warn: the end\n")
	require.Contains(t, shown, "completed")
	content, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, "app", string(content))
	require.Contains(t, string(d.Build("build-1").Source), "PK")
}

func TestTheShellCompletesNames(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	id := d.Submit("ios", nil, nil)
	d.worker(t, "mini-07")
	for _, command := range []string{"status", "logs", "download", "cancel", "retry", "priority", "requeue"} {
		require.Contains(t, d.ok(t, "__complete", command, ""), id+"\tpending", command)
	}
	for _, command := range []string{"show", "drain", "resume", "delete"} {
		require.Contains(t, d.ok(t, "__complete", "workers", command, ""), "mini-07", command)
	}
	require.Contains(t, d.ok(t, "__complete", "list", "--worker", ""), "mini-07")
	require.NotContains(t, d.ok(t, "__complete", "status", id, ""), id, "it takes one")
	d.env["TAKT_URL"] = "http://127.0.0.1:1"
	require.Equal(t, ":36\n", d.ok(t, "__complete", "status", ""), "no names, and no files either")
}

func TestWaitTellsWhereTheBuildStands(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"status --wait", "logs -f"} {
		t.Run(command, func(t *testing.T) { t.Parallel(); tellsWhereTheBuildStands(t, strings.Fields(command)) })
	}
}

func tellsWhereTheBuildStands(t *testing.T, command []string) {
	t.Helper()
	d := newTerminal(t)
	id := d.Submit("ios", nil, nil)
	require.Contains(t, d.ok(t, "status", id), "\nEvery slot is busy. Estimated start: within 20 s.\n")
	asked := d.Requests("GET /api/builds/" + id + "/why")
	go func() {
		d.Await(t, "the build is looked at", func() bool { // so the first question was answered
			return d.Requests("GET /api/builds/"+id+"/why") > asked+1 || d.Requests("GET /api/builds/"+id+"/logs") > 0
		})
		d.Edit(id, func(b *controllertest.Build) { b.State = store.Building })
		d.Await(t, "its log is looked at", func() bool { return d.Requests("GET /api/builds/"+id+"/logs") > 0 })
		d.finish(id, store.Completed, "app", "")
	}()
	code, _, errs := d.takt(t.Context(), append(command, id)...)
	require.Zero(t, code)
	require.Contains(t, errs, id+": pending. Every slot is busy. Estimated start: within 20 s.\n")
	if command[0] == "status" {
		require.Contains(t, errs, id+": building\n")
	}
	require.NotContains(t, errs, "\x1b", "this is no terminal")
}

func TestInterruptedDownloadSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	id := d.Submit("ios", nil, nil)
	d.finish(id, store.Completed, "the whole result", "")
	route := "/api/builds/" + id + "/download"
	d.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != route {
			return false
		}
		if r.Header.Get("Range") != "" {
			controllertest.Problem(w, http.StatusForbidden, store.Forbidden, "Not now")
			return true
		}
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Content-Length", "16")
		_, _ = w.Write([]byte("the "))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	out := filepath.Join(d.dir, "app")
	d.fails(t, 4, "4 B of the result are kept in "+out+".part; running the same command again resumes", "download", id, "-o", out)
	d.Intercept(nil)
	_ = os.Remove(out + ".part") // of another result
	d.ok(t, "download", id, "-o", out)
}

func TestBuildThatFailedHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	id := d.Submit("ios", []byte("zip"), nil)
	d.finish(id, store.Failed, "", "compiler is tired")
	for _, args := range [][]string{{"status", "--wait", id}, {"logs", "-f", id}} {
		d.fails(t, 6, "build "+id+" failed: compiler is tired", args...)
	}
	d.ok(t, "status", id)
}

func TestJSON(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	var submitted map[string]any
	require.NoError(t, json.Unmarshal([]byte(d.ok(t, "submit", "-p", "ios", "--json", d.source(t))), &submitted))
	require.Equal(t, "build-1", submitted["id"])
	require.NotContains(t, submitted, "access_token")
	d.finish("build-1", store.Completed, "app", "")

	var status struct {
		State       string    `json:"state"`
		SubmittedAt time.Time `json:"submitted_at"`
	}
	require.NoError(t, json.Unmarshal([]byte(d.ok(t, "status", "build-1", "--json")), &status))
	require.Equal(t, "completed", status.State)
	require.False(t, status.SubmittedAt.IsZero(), "the API has milliseconds there")

	lines := strings.Split(strings.TrimSpace(d.ok(t, "logs", "build-1", "--json", "--after", "1")), "\n")
	require.Len(t, lines, 1)
	var line struct {
		Seq       int64     `json:"seq"`
		Timestamp time.Time `json:"timestamp"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &line))
	require.Equal(t, int64(2), line.Seq)

	var all []api.BuildItem
	require.NoError(t, json.Unmarshal([]byte(d.ok(t, "list", "--json", "--status", "completed")), &all))
	require.Len(t, all, 1)
	require.Equal(t, "[]\n", d.ok(t, "list", "--json", "--status", "failed"))

	var file map[string]any
	out := filepath.Join(d.dir, "out")
	require.NoError(t, json.Unmarshal([]byte(d.ok(t, "download", "build-1", "-o", out, "--json")), &file))
	require.InDelta(t, 3, file["bytes"], 0)

	var root api.TreeNode
	require.NoError(t, json.Unmarshal([]byte(d.ok(t, "tree", "--json")), &root))
	require.Equal(t, "takt", root.ID)
	require.True(t, json.Valid([]byte(d.ok(t, "version", "--json"))))
}

func TestListCancelTree(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	one, two := d.Submit("ios", nil, nil), d.Submit("android", nil, nil)
	require.Equal(t, one+" cancelled\n", d.ok(t, "cancel", one))
	listed := d.ok(t, "list")
	require.Less(t, strings.Index(listed, two), strings.Index(listed, one))
	require.Contains(t, listed, "cancelled")
	require.NotContains(t, d.ok(t, "list", "-n", "1"), one)
	require.NotContains(t, d.ok(t, "list", "--platform", "android"), one)
	require.Contains(t, d.ok(t, "tree"), "|-- database")
}

func TestACancelIsShownWithWhoAndWhy(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	id := d.Submit("ios", []byte("zip"), nil)
	require.Regexp(t, id+` +pending +ios +\d+d \d+h +waits 5m`, d.ok(t, "list"))
	require.Contains(t, d.ok(t, "why", id), "It waits for 5m")
	d.ok(t, "cancel", id, "--reason", "superseded by 772")
	status := d.ok(t, "status", id)
	require.Contains(t, status, "ended by   api\nreason     superseded by 772\n")
	require.NotContains(t, status, store.MessageCancelled)
	d.fails(t, cli.ExitBuildFailed, "build "+id+" cancelled by api: superseded by 772", "status", "--wait", id)

	_, out, errs := d.takt(t.Context(), "retry", id)
	again := strings.TrimSpace(out)
	require.Contains(t, errs, "submitted again: "+d.URL+"/builds/"+again+"\n")
	require.Contains(t, d.ok(t, "status", again), "retry of   "+id+"\n")
	require.Regexp(t, again+` .*\(retry of `+id+`\)\n`, d.ok(t, "list"))
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	done := d.Submit("ios", nil, nil)
	d.finish(done, store.Completed, "app", "")
	source := d.source(t)
	empty := d.file(t, "empty", "")
	tests := []struct {
		name string
		args []string
		env  map[string]string
		code int
		text string
	}{
		{"unknown command", []string{"sbumit"}, nil, 2, "did you mean submit?"},
		{"unknown flag", []string{"list", "--frobnicate"}, nil, 2, "unknown flag"},
		{"missing argument", []string{"status"}, nil, 2, "takt status needs an argument (takt list shows builds); usage: takt status ID"},
		{"a label without value", []string{"submit", "-p", "ios", source, "--label", "cache"}, nil, 2, "want name=value"},
		{"a label with a bad name", []string{"submit", "-p", "ios", source, "--label", "a b=c"}, nil, 2, "names are 1 to 63"},
		{"no platform", []string{"submit", source}, nil, 2, "--platform is needed, such as ios or android"},
		{"a wrong platform", []string{"submit", "-p", "Windows 11", source}, nil, 2, "is not a platform, such as ios or android"},
		{"serve takes no arguments", []string{"serve", "extra"}, nil, 2, "usage: takt serve"},
		{"another system's flag", []string{"serve", "--db", "x.sqlite"}, nil, 2, "--database-url"},
		{"nothing to change", []string{"load", "limits"}, nil, 2, "give --soft, --hard, --reserved or --reset"},
		{"how it is used", []string{"cancel"}, nil, 2, "usage: takt cancel ID"},
		{"URL without scheme", []string{"list", "--url", "localhost:3000"}, nil, 2, "did you mean http://localhost:3000?"},
		{"address without scheme", []string{"list", "--url", "127.0.0.1:3000"}, nil, 2, "did you mean http://127.0.0.1:3000?"},
		{"no such source", []string{"submit", "-p", "ios", source + "x"}, nil, 2, "no such file"},
		{"a source that is no archive", []string{"submit", "-p", "ios", empty}, nil, 2, empty + " is no zip archive: SOURCE must be one, or a directory"},
		{"bad URL", []string{"list", "--url", "localhost"}, nil, 2, "controller URL"},
		{"empty key file", []string{"list", "--api-key-file", empty}, nil, 2, "is empty"},
		{"not found", []string{"status", "nope"}, nil, 3, "There is no build nope; takt list shows the newest"},
		{"not an id", []string{"status", "../x"}, nil, 2, "not a valid build id"},
		{"wrong key", []string{"list", "--api-key", "wrong"}, nil, 4, "Invalid API key"},
		{"wrong admin key", []string{"tree"}, map[string]string{"TAKT_ADMIN_KEY": "wrong"}, 4, "Invalid admin key (check TAKT_ADMIN_KEY; it is not the API key"},
		{"ended already", []string{"cancel", done}, nil, 1, "Build already finished"},
		{"nothing to run", []string{"worker"}, nil, 2, "--exec or --image"},
		{"a state that is none", []string{"list", "--status", "banana"}, nil, 2, `--status: "banana" is not one of pending, assigned,`},
		{"a worker's state that is none", []string{"workers", "--status", "banana"}, nil, 2, `--status: "banana" is not one of critical,`},
		{"a size without a unit that is known", []string{"worker", "--exec", "true", "--memory", "4XB"}, nil, 2, "such as 4GiB or 500MB"},
		{"a name that it might have", []string{"throttle", "set", "1"}, nil, 2, "did you mean config?"},
		{"bad platform", []string{"worker", "--exec", "true", "--platform", "Windows"}, nil, 2, `"Windows"`},
		{"bad label", []string{"worker", "--exec", "true", "--label", "xcode"}, nil, 2, "want name=value"},
		{"users of a container", []string{"worker", "--image", "i", "--engine", "e", "--user", "a,b"}, nil, 2, "--user: a container has one user"},
		{"no such user", []string{"worker", "--exec", "true", "--user", "root"}, nil, 2, `--user: user "root" is root`},
		{"keys stay here", []string{"worker", "--exec", "true", "--env", "TAKT_API_KEY"}, nil, 2, "can't be set"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			mine := *d
			mine.env = maps.Clone(d.env)
			maps.Copy(mine.env, tt.env)
			code, _, errs := mine.takt(t.Context(), tt.args...)
			require.Equal(t, tt.code, code, errs)
			require.Contains(t, errs, tt.text)
			require.NotContains(t, errs, controllertest.APIKey)
		})
	}
}

func TestControllerNotAvailable(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		controllertest.Problem(w, http.StatusServiceUnavailable, store.QueueFull, "Build queue full, try again later")
		return true
	})
	d.fails(t, 5, "Build queue full", "submit", "-p", "ios", d.source(t))
	require.Equal(t, 1, d.Requests("POST /api/builds"), "a full queue is not waited for")
}

func TestLogsAreFollowedThroughStreamsThatBreak(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.Stream()
	id := d.Submit("ios", nil, nil)
	cuts := 0
	d.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if cuts == 2 || !strings.HasSuffix(r.URL.Path, "/logs") {
			return false
		}
		cuts++
		ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
		defer cancel()
		d.Answer(w, r.WithContext(ctx))
		if cuts == 2 {
			d.finish(id, store.Failed, "", "exit status 1")
		}
		panic(http.ErrAbortHandler)
	})
	code, out, errs := d.takt(t.Context(), "logs", "--follow", id)
	require.Equal(t, 6, code, errs)
	require.Equal(t, 1, strings.Count(out, "Build submitted"), "no line twice")
	require.Equal(t, 1, strings.Count(out, "end"))
	require.Equal(t, 4, d.Requests("GET /api/builds/"+id+"/logs"), "three streams, and a last look for what came late")
	require.Equal(t, 1, d.Requests("GET /api/builds/"+id+"/status"), "nobody had to ask how it goes")
}

func TestSubmitSurvivesALostReply(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	lost := 0
	d.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/builds" || lost == 2 {
			return false
		}
		lost++
		d.Answer(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})
	id := strings.TrimSpace(d.ok(t, "submit", "-p", "ios", d.source(t), "--label", "cache=app", "-l", "a=b=c", "--priority", "-4"))
	require.Equal(t, "build-1", id)
	require.Equal(t, 3, d.Requests("POST /api/builds"))
	require.Empty(t, d.Build("build-2").ID, "one build")
	require.Equal(t, store.Labels{"cache": "app", "a": "b=c"}, d.Build(id).Labels)
	shown := d.ok(t, "status", id)
	require.Regexp(t, `label +cache=app`, shown)
	require.Regexp(t, `priority +-4`, shown)

	for range 2 {
		require.Equal(t, "build-2\n", d.ok(t, "submit", "-p", "ios", d.source(t), "--idempotency-key", "mine"))
	}
	require.Equal(t, "build-3\n", d.ok(t, "submit", "-p", "ios", d.source(t)), "each run has a key of its own")
}

func TestWaitOutlastsARestartOfTheController(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	id := d.Submit("ios", nil, nil)
	tries := make(chan struct{}, 100)
	d.Intercept(func(http.ResponseWriter, *http.Request) bool {
		tries <- struct{}{}
		panic(http.ErrAbortHandler)
	})
	go func() {
		<-tries
		<-tries
		d.Intercept(nil)
		d.finish(id, store.Completed, "app", "")
	}()
	d.ok(t, "status", "--wait", id)
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	require.Contains(t, d.ok(t, "completion", "bash"), "takt")
	require.Contains(t, d.ok(t, "__complete", "submit", "--platform", ""), "android")
}

// TestABundleOfABrokenController is about a controller of which something fails.
func TestABundleOfABrokenController(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/metrics":
			_, _ = io.WriteString(w, "takt_ready 0\n")
		case "/admin/debug":
			raw, _ := json.Marshal(map[string]any{"log": []string{"{}\n"}, "database_error": "no answer"})
			_, _ = w.Write(raw)
		default:
			controllertest.Problem(w, http.StatusServiceUnavailable, store.Unavailable, "not now")
		}
		return true
	})
	file := filepath.Join(d.dir, "b.tar.gz")
	require.Equal(t, file+"\n", d.ok(t, "debug", "bundle", "-o", file))
	files := takttest.UnpackBundle(t, file)
	require.Equal(t, "takt_ready 0\n", files["metrics.txt"])
	for _, fault := range []string{"database.json: no answer\n", "tree.json: not now\n", "cpu.pprof: not now\n"} {
		require.Contains(t, files["errors.txt"], fault)
	}
	d.fails(t, 1, "file exists", "debug", "bundle", "-o", file)
	require.Equal(t, files, takttest.UnpackBundle(t, file))

	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		controllertest.Problem(w, http.StatusForbidden, store.Forbidden, "Invalid admin key")
		return true
	})
	d.fails(t, 4, "Invalid admin key", "debug", "bundle", "-o", file+"2")
	require.NoFileExists(t, file+"2")
}
