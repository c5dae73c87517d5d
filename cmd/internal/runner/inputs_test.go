package runner

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/mask"
	"takt/http/api"
	"takt/store"
)

// submitWith submits a build with inputs, before its worker starts.
func (b *bench) submitWith(t *testing.T, in api.HeldInputs) string {
	t.Helper()
	id := b.Submit("linux", source(t), nil)
	b.Edit(id, func(b *controllertest.Build) { b.Inputs = &in })
	return id
}

// takes makes a worker take BUILD_* and secrets.
func takes(c *Config) { c.AcceptEnv, c.AcceptSecrets = []string{"BUILD_*"}, true }

func TestBuildGetsItsInputs(t *testing.T) {
	t.Parallel()
	b := newBench(t, `
		[ "$(stat -c %a "$TAKT_SECRETS" "$TAKT_SECRETS/KEY" | tr '\n' ' ')" = "700 600 " ] || exit 9
		{ env -0 | sort -z | tr '\0' '|'; cat "$TAKT_PARAMS"; echo; cat "$TAKT_SECRETS/KEY"; } > "$TAKT_OUTPUT"`,
		takes, func(c *Config) { c.Keep = true })
	id := b.submitWith(t, api.HeldInputs{
		Params: map[string]string{"BUILD_TEXT": "two\nlines, \"ä\"", "BUILD_NONE": ""},
		Secrets: []api.HeldSecret{
			{Name: "API_TOKEN", As: "env", Value: []byte("correct horse"), Mask: true},
			{Name: "KEY", As: "file", Value: []byte("battery\x00staple"), Mask: true},
			{Name: "PUBLIC", As: "env", Value: []byte("p"), Mask: false},
		},
		Labels: map[string]string{"flavour": "free", "a.b": "1", "a-b": "2", "x/y": "3"},
		Facts:  api.Facts{Commit: "0123abc", Branch: "feature/x"}, Submitter: "ci",
	})
	b.start(t)
	got := b.AwaitState(t, id, store.Completed)
	for _, want := range []string{
		"|BUILD_TEXT=two\nlines, \"ä\"|", "|BUILD_NONE=|", "API_TOKEN=correct horse|", "|PUBLIC=p|", "|TAKT_LABEL_FLAVOUR=free|", "|TAKT_LABEL_X_Y=3|",
		"|TAKT_COMMIT=0123abc|", "|TAKT_BRANCH=feature/x|", "|TAKT_SUBMITTER=ci|",
		`{"BUILD_NONE":"","BUILD_TEXT":"two\nlines, \"ä\""}`, "\nbattery\x00staple",
	} {
		require.Contains(t, string(got.Result), want)
	}
	require.NotContains(t, string(got.Result), "TAKT_LABEL_A_B=")
	require.NotEmpty(t, b.line(id, "TAKT_LABEL_A_B is not set, because the labels a-b, a.b would all be it"))
	require.NotEmpty(t, b.line(id, "secret PUBLIC is not masked"))
	b.end()
	root := filepath.Join(b.worker.cfg.StateDir, "builds", id+"-1")
	require.DirExists(t, filepath.Join(root, "source"))
	require.NoDirExists(t, filepath.Join(root, "secrets"))
}

func TestInputsThatAWorkerRefuses(t *testing.T) {
	t.Parallel()
	secret := func(name, value string) []api.HeldSecret {
		return []api.HeldSecret{{Name: name, As: "env", Value: []byte(value), Mask: true}}
	}
	tests := []struct {
		name string
		in   api.HeldInputs
		want string
	}{
		{"a parameter of another name", api.HeldInputs{Params: map[string]string{"API_URL": "x", "BUILD_A": "a"}}, "parameter API_URL is not one that this worker's --accept-env takes (BUILD_*,PATH,OTHER)"},
		{"one that no build may set", api.HeldInputs{Params: map[string]string{"PATH": "x"}}, "parameter PATH can't be set by a build"},
		{"one that the operator sets", api.HeldInputs{Params: map[string]string{"BUILD_OWN": "x"}}, "parameter BUILD_OWN is set by this worker's --env"},
		{"one that is no name", api.HeldInputs{Params: map[string]string{"BUILD_a=b": "x"}}, "parameter BUILD_a=b is no name of a variable"},
		{"several", api.HeldInputs{Params: map[string]string{"PATH": "x", "LD_PRELOAD": "x"}}, "parameter LD_PRELOAD can't be set by a build; parameter PATH can't be set by a build"},
		{"a secret that no build may set", api.HeldInputs{Secrets: secret("LD_PRELOAD", "x.so.1")}, "secret LD_PRELOAD can't be set by a build"},
		{"a secret with NUL", api.HeldInputs{Secrets: secret("KEY", "binary\x00key")}, "secret KEY has a NUL byte, which no variable can have"},
		{"a secret of a parameter's name", api.HeldInputs{Params: map[string]string{"BUILD_A": "a"}, Secrets: secret("BUILD_A", "hunter2")}, "secret BUILD_A has the name of a parameter"},
		{"a secret that leaves its directory", api.HeldInputs{Secrets: []api.HeldSecret{{Name: "../source/main.txt", As: "file", Value: []byte("x")}}}, "secret ../source/main.txt is no name of a variable"},
		{"a secret of another kind", api.HeldInputs{Secrets: []api.HeldSecret{{Name: "KEY", As: "vault", Value: []byte("x")}}}, `secret KEY is for "vault", which this worker does not know`},
		{"too much", api.HeldInputs{Secrets: secret("KEY", strings.Repeat("0123456789", 80_000))}, "variables of 800004 bytes together: at most 786432"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			marker := filepath.Join(t.TempDir(), "ran")
			b := newBench(t, `touch `+marker+`; touch "$TAKT_OUTPUT"`, takes, func(c *Config) {
				c.AcceptEnv, c.OwnEnv = append(c.AcceptEnv, "PATH", "OTHER"), []string{"BUILD_OWN"}
			})
			id := b.submitWith(t, tt.in)
			b.start(t)
			got := b.AwaitState(t, id, store.Failed)
			require.Contains(t, got.ErrorMessage, tt.want)
			require.Equal(t, store.FaultBuild, got.Fault, "no further attempts")
			require.NoFileExists(t, marker)
		})
	}
}

// A container gets variables that its engine reads from a file of lines, which is removed with the secrets.
func TestSecretsThatAContainerEngineReads(t *testing.T) {
	t.Parallel()
	c := Config{Command: &Image{}, AcceptSecrets: true, Timeout: time.Hour, MaxTimeout: time.Hour}
	secret := func(name, value string) (inputs, error) {
		return c.inputs(api.HeldInputs{Secrets: []api.HeldSecret{{Name: name, As: "env", Value: []byte(value), Mask: true}}})
	}
	for name, value := range map[string]string{"DOCKER_PASSWORD": "hunter2", "SSH_KEY": "two\nlines", "STORAGE_TOKEN": "two\nlines"} {
		in, err := secret(name, value)
		require.NoError(t, err)
		require.Equal(t, []string{name + "=" + value}, in.vars)
	}
	_, err := secret("DOCKER_KEY", "two\nlines")
	require.EqualError(t, err, "secret DOCKER_KEY can't be a variable of several lines or more than 61440 bytes, because the container engine reads it; a secret can be a file (--secret-file)")
	ws := workspace{root: t.TempDir()}
	ws.envFile = filepath.Join(ws.root, "env")
	require.NoError(t, os.WriteFile(ws.envFile, []byte("DOCKER_PASSWORD=hunter2\n"), 0o600))
	require.NoError(t, ws.removeSecrets())
	require.NoFileExists(t, ws.envFile)
}

func TestParametersThatABuildCanDoWithout(t *testing.T) {
	t.Parallel()
	b := newBench(t, `cat "$TAKT_PARAMS" > "$TAKT_OUTPUT"; [ -z "${API_URL+x}" ] && [ "$BUILD_A" = a ]`, takes)
	id := b.submitWith(t, api.HeldInputs{Params: map[string]string{"API_URL": "x", "BUILD_A": "a"}, ParamsOptional: true})
	b.start(t)
	require.JSONEq(t, `{"API_URL":"x","BUILD_A":"a"}`, string(b.AwaitState(t, id, store.Completed).Result))
	require.NotEmpty(t, b.line(id, "parameter API_URL is not one that this worker's --accept-env takes (BUILD_*): left out"))
}

// TestBuildsForOtherWorkers are given back: the controller knows which ones can run them.
func TestBuildsForOtherWorkers(t *testing.T) {
	t.Parallel()
	for want, in := range map[string]api.HeldInputs{
		"this worker takes no builds with secrets (--accept-secrets)":          {Secrets: []api.HeldSecret{{Name: "KEY", As: "env", Value: []byte("x")}}},
		"this worker allows builds at most 4h0m0s (--max-timeout), not 4h0m1s": {Timeout: 4*3600 + 1},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "true", func(c *Config) { c.AcceptEnv = []string{"*"} })
			id := b.submitWith(t, in)
			b.start(t)
			got := b.AwaitState(t, id, store.Failed) // this controller gives nothing back
			require.Equal(t, want, got.ErrorMessage)
			require.Equal(t, store.FaultCommand, got.Fault)
		})
	}
}

func TestInputsOfABuildThatIsNotOurs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		code   store.Code
	}{{http.StatusForbidden, store.NotAssigned}, {http.StatusNotFound, store.NotFound}, {http.StatusConflict, store.StaleAttempt}} {
		t.Run(string(tt.code), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, copyBuild)
			id := b.submitWith(t, api.HeldInputs{})
			b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, "/inputs") {
					return false
				}
				b.Edit(id, func(b *controllertest.Build) { b.State = store.Cancelled })
				controllertest.Problem(w, tt.status, tt.code, "not yours")
				return true
			})
			b.start(t)
			b.completes(t)
			require.Zero(t, b.Build(id).Uploads)
			require.Empty(t, b.line(id, "done"))
		})
	}
}

func TestInputsWhileTheControllerIsAway(t *testing.T) {
	t.Parallel()
	b := newBench(t, `echo "$BUILD_A" > "$TAKT_OUTPUT"`, takes)
	var requests each
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/inputs") || requests.next(r) > 5 {
			return false
		}
		controllertest.Problem(w, http.StatusServiceUnavailable, store.Unavailable, "Database away")
		return true
	})
	id := b.submitWith(t, api.HeldInputs{Params: map[string]string{"BUILD_A": "a"}})
	b.start(t)
	require.Equal(t, "a\n", string(b.AwaitState(t, id, store.Completed).Result))
}

func TestEndsAreData(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, script string
		timeout      int
		want         map[string]string
		message      string
	}{
		{"an exit code", "exit 75", 0, map[string]string{"exit_code": "75"}, "build command failed: exit code 75"},
		{"a signal", "kill -9 $$", 0, map[string]string{"signal": "9"}, "build command failed: ended by signal 9 (killed)"},
		{"a time limit of the build's own", "sleep 1000", 1, map[string]string{"timed_out": "true"}, "build exceeded its time limit of 1s"},
		{"none", "true", 0, map[string]string{}, "build command produced no file at $TAKT_OUTPUT"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, tt.script)
			id := b.submitWith(t, api.HeldInputs{Timeout: tt.timeout})
			b.start(t)
			got := b.AwaitState(t, id, store.Failed)
			require.Equal(t, tt.message, got.ErrorMessage)
			require.Equal(t, tt.want, got.Ended)
		})
	}
}

// all is a writer that keeps everything.
type all struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (a *all) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.Write(p)
}

func (a *all) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.String()
}

// TestNoSecretLeavesTheWorker in any request, nor in its log: not in lines, also those that are cut
// or come in pieces, nor in errors, nor in the name of the result.
func TestNoSecretLeavesTheWorker(t *testing.T) {
	t.Parallel()
	token := "tok.e2n/" + strings.Repeat("x", 20)
	script := `
		echo "it is $API_TOKEN"; printf %s "$API_TOKEN" | base64; printf 'user:%s' "$API_TOKEN" | base64
		t=$(printf %s "$API_TOKEN"); printf %s "${t%xxxxx}"; sleep 0.2; echo xxxxx
		head -c 8180 /dev/zero | tr '\0' -; echo "$API_TOKEN"
		cat "$TAKT_SECRETS/KEY"; cat "$TAKT_SECRETS/KEY" >&2
		echo "failed with $API_TOKEN" >&2
		[ -z "$FAILS" ] || exit 3
		touch "$TAKT_OUTPUT.$NAME"`
	for _, fails := range []string{"", "1"} {
		t.Run("fails:"+fails, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, script, takes, func(c *Config) {
				e := *c.Command.(*Exec)
				e.Env = append(e.Env, "FAILS="+fails)
				c.Command = &e
			})
			var sent, logged all
			b.worker.log = zerolog.New(&logged)
			b.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
				body, _ := io.ReadAll(r.Body)
				_, _ = fmt.Fprintf(&sent, "%s %s %v\n%s\n", r.Method, r.URL, r.Header, body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				return false
			})
			id := b.submitWith(t, api.HeldInputs{Secrets: []api.HeldSecret{
				{Name: "API_TOKEN", As: "env", Value: []byte(token + "\n"), Mask: true},
				{Name: "NAME", As: "env", Value: []byte("hunter2"), Mask: true},
				{Name: "KEY", As: "file", Value: []byte("-----BEGIN KEY-----\nline of the key\nsh0rt\n-----END KEY-----\n"), Mask: true},
			}})
			b.start(t)
			b.Await(t, "it ends", func() bool { return b.Build(id).State.Final() })
			b.end()
			if fails != "" {
				require.Contains(t, b.Build(id).ErrorMessage, "exit code 3")
				require.Contains(t, b.Build(id).ErrorMessage, "failed with ***")
			} else {
				require.Equal(t, store.Completed, b.Build(id).State)
			}
			require.NotEmpty(t, b.line(id, "it is ***"))
			quoted, _ := json.Marshal(token)
			for _, out := range []string{sent.String(), logged.String()} {
				for _, form := range []string{
					token, token[:len(token)-5], strings.Trim(string(quoted), `"`), base64.StdEncoding.EncodeToString([]byte(token))[:20],
					"hunter2", "line of the key", "BEGIN KEY", "sh0rt",
				} {
					require.NotContains(t, out, form)
				}
			}
		})
	}
}

// A controller's words may have a secret, too: here the name of a file.
func TestNoSecretIsInWhatTheControllerSays(t *testing.T) {
	t.Parallel()
	b := newBench(t, copyBuild, takes)
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !strings.HasSuffix(r.URL.Path, "/upload") || bytes.Contains(body, []byte("result refused")) {
			return false
		}
		controllertest.Problem(w, http.StatusRequestEntityTooLarge, store.TooLarge, "hunter2.zip is too large")
		return true
	})
	id := b.submitWith(t, api.HeldInputs{Secrets: []api.HeldSecret{{Name: "NAME", As: "env", Value: []byte("hunter2"), Mask: true}}})
	b.start(t)
	require.Equal(t, "result refused: ***.zip is too large", b.AwaitState(t, id, store.Failed).ErrorMessage)
}

// readable is the arguments of all processes, as everyone can read them.
func readable(t *testing.T) string {
	t.Helper()
	paths := must(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	require.NotEmpty(t, paths)
	var all strings.Builder
	for _, path := range paths {
		raw, _ := os.ReadFile(path) // gone, should it fail
		all.Write(append(bytes.ReplaceAll(raw, []byte{0}, []byte(" ")), '\n'))
	}
	return all.String()
}

func TestValuesAreInNoArguments(t *testing.T) {
	t.Parallel()
	b := newBench(t, `echo begun; [ "$BUILD_A" = "$SECRET.1" ]; until [ -e gate ]; do sleep 0.01; done; cp main.txt "$TAKT_OUTPUT"`, takes)
	value := store.NewID()
	id := b.submitWith(t, api.HeldInputs{
		Params:  map[string]string{"BUILD_A": value + ".1"},
		Secrets: []api.HeldSecret{{Name: "SECRET", As: "env", Value: []byte(value), Mask: true}},
	})
	b.start(t)
	b.Await(t, "the build runs", b.has(id, "begun"))
	said := readable(t)
	require.Contains(t, said, "echo begun")
	require.NotContains(t, said, value)
	touch(t, filepath.Join(b.worker.cfg.StateDir, "builds", id+"-1", "source", "gate"))
	b.AwaitState(t, id, store.Completed)
}

func TestKilledWorkerRemovesSecrets(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	state := b.worker.cfg.StateDir
	id := b.submitWith(t, api.HeldInputs{Secrets: []api.HeldSecret{{Name: "KEY", As: "file", Value: []byte("correct horse"), Mask: true}}})
	process := startProcess(t, b.URL, state, `ls "$TAKT_SECRETS"; sleep 1000`)
	b.Await(t, "the build runs", b.has(id, "KEY"))
	secrets := filepath.Join(state, "builds", id+"-1", "secrets")
	require.FileExists(t, filepath.Join(secrets, "KEY"))
	require.NoError(t, process.Process.Kill())
	require.Error(t, process.Wait())
	awaitGone(t, secrets)
}

// TestTheGuardRemovesSecretsOfACommandThatNeverBegan, as those of a worker that is killed at that
// moment.
func TestTheGuardRemovesSecretsOfACommandThatNeverBegan(t *testing.T) {
	t.Parallel()
	plan := shell(t, "true")
	plan.secrets, plan.Cleanup = filepath.Join(t.TempDir(), "secrets"), []string{"/bin/sh", "-c", "true"}
	guard := must(newGuard(t.Context(), plan))(t)
	require.NoError(t, os.Mkdir(plan.secrets, 0o700))
	require.NoError(t, guard.pipe.Close())
	require.NoError(t, guard.cmd.Wait())
	require.NoDirExists(t, plan.secrets)
}

// TestVariablesThatAreTooLarge are no fault of the worker's.
func TestVariablesThatAreTooLarge(t *testing.T) {
	t.Parallel()
	plan := shell(t, "true")
	plan.vars = []string{"A=" + strings.Repeat("a", 8<<20)}
	err := run(t.Context(), plan, newOutput(), newOutput(), time.Second)
	require.ErrorContains(t, err, "the build's variables are too large")
	require.Equal(t, store.FaultBuild, faultOf(err))
}

// TestLinesThatMayBeginASecret wait for the next one, not for ever, and are whole.
func TestLinesThatMayBeginASecret(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		w := &lineWriter{limit: 20, emit: func(line string) { lines = append(lines, line) }, masked: mask.New([]byte("{\n \"a\"\n}\n1234567890")).Stream()}
		said := func() []string {
			w.mu.Lock() // emit is called under it, also by the timer
			defer w.mu.Unlock()
			return slices.Clone(lines)
		}
		write := func(text string) { must(w.Write([]byte(text)))(t) }
		write("one {\n")
		require.Empty(t, said())
		<-time.After(maxPause + 1)
		synctest.Wait()
		require.Equal(t, []string{"one {"}, said())
		write("two {\n \"a\"\n")
		<-time.After(maxPause / 2)
		write("}\n12345678")
		<-time.After(2 * maxPause)
		synctest.Wait()
		require.Len(t, said(), 1, "a line without an end")
		write("90\n" + strings.Repeat("-", 15) + "{\n \"a\"\n}\n1234567890\n")
		require.Equal(t, []string{"two ***", strings.Repeat("-", 15) + "***"}, said()[1:])
		write("three {\n")
		w.close()
		require.Equal(t, "three {", said()[3])
	})
}

func TestFeaturesOfAWorker(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		edit       func(*Config)
		features   []string
		maxTimeout int
	}{
		{"by default", func(*Config) {}, []string{"env", "exit", "timeout"}, 4 * 3600},
		{"with secrets and long builds", func(c *Config) { c.AcceptSecrets, c.Timeout = true, 9*time.Hour }, []string{"env", "exit", "timeout", "secrets"}, 9 * 3600},
		{"with short builds only", func(c *Config) { c.Timeout, c.MaxTimeout = time.Minute, 30*time.Minute }, []string{"env", "exit", "timeout"}, 1800},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, copyBuild, tt.edit).start(t)
			b.completes(t)
			got := b.Workers()[0].Capabilities
			require.Equal(t, tt.features, got.Features)
			require.Equal(t, tt.maxTimeout, got.MaxTimeout)
		})
	}
}
