package store_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestParams(t *testing.T) {
	t.Parallel()
	p, err := store.ParseParams([]byte(`{"BUILD_NUMBER": "42", "_A": "two\nlines", "APP_TEXT": "ü=\"x\""}`))
	require.NoError(t, err)
	require.Equal(t, store.Params{"BUILD_NUMBER": "42", "_A": "two\nlines", "APP_TEXT": "ü=\"x\""}, p)
	none, err := store.ParseParams([]byte(` {} `))
	require.NoError(t, err)
	require.Empty(t, none)

	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint("A", i)] = ""
	}
	object := func(m map[string]string) string {
		text, err := json.Marshal(m)
		require.NoError(t, err)
		return string(text)
	}
	sized := func(n int) string { return object(map[string]string{"AB": strings.Repeat("x", n-2)}) }
	for text, want := range map[string]string{
		"": "must be a JSON object of strings", "null": "must be a JSON object", "[]": "must be a JSON object", `{"A":1}`: "must be a JSON object", `{"A":null}`: "must be a JSON object",
		`{"A":"1"`: "must be a JSON object", `{"A":"1"} {}`: "must be a JSON object", `{"A":"1","A":"1"}`: `invalid_param: params: "A" is there twice`,
		`{"a":"1"}`: `invalid_param: params: "a" is no name: want 1 to 128 of A-Z, 0-9 and _, not beginning with a digit`, `{"1A":""}`: "invalid_param: params: \"1A\" is no name",
		`{"":""}`: "invalid_param", `{"A-B":""}`: "invalid_param", "{\"A\\u0007\":\"\"}": "invalid_param", `{"` + strings.Repeat("A", 129) + `":""}`: "invalid_param",
		"{\"A\":\"\xff\"}": "invalid_param: params: must be UTF-8 text", `{"A":"a\u0000b"}`: "invalid_param: params: the value of A must be UTF-8 text without NUL",
		`{"PATH":"/"}`:    "reserved_param: params: no build may set PATH",
		object(many):      "too_many_params: params: at most 64, got 65",
		sized(32<<10 + 1): "params_too_large: params: names and values have at most 32768 bytes together",
		object(map[string]string{"A": strings.Repeat("x", 1<<20)}): "params_too_large",
	} {
		_, err := store.ParseParams([]byte(text))
		require.ErrorContains(t, err, want, store.Clip(text, 50))
	}
	delete(many, "A64")
	for _, text := range []string{sized(32 << 10), object(many), `{"` + strings.Repeat("A", 128) + `":""}`} {
		_, err := store.ParseParams([]byte(text))
		require.NoError(t, err)
	}

	value := "2"
	changed, err := p.Change(map[string]*string{"BUILD_NUMBER": &value, "_A": nil, "NEW": &value, "GONE": nil})
	require.NoError(t, err)
	require.Equal(t, store.Params{"BUILD_NUMBER": "2", "APP_TEXT": "ü=\"x\"", "NEW": "2"}, changed)
	require.Equal(t, "42", p["BUILD_NUMBER"], "the old build keeps its own")
	_, err = store.Params(nil).Change(map[string]*string{"PATH": &value})
	require.Equal(t, store.ReservedParam, store.CodeOf(err))
}

func TestRefusedNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"PATH", "HOME", "USER", "SHELL", "ENV", "IFS", "TMPDIR", "TERM", "PWD", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_ANYTHING", "DYLD_INSERT_LIBRARIES",
		"BASH_ENV", "BASH_FUNC_X", "BASHOPTS", "SHELLOPTS", "TAKT_OUTPUT", "TAKT_PARAMS", "NODE_OPTIONS", "NODE_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME",
		"PERL5LIB", "PERL5OPT", "PERLLIB", "RUBYOPT", "RUBYLIB", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "GIT_SSH_COMMAND",
		"GIT_CONFIG_COUNT", "GIT_EXTERNAL_DIFF", "PS4", "PROMPT_COMMAND", "CDPATH", "GLOBIGNORE", "GCONV_PATH", "LUA_INIT", "MAKEFLAGS",
	} {
		require.True(t, store.RefusedName(name), name)
	}
	for _, name := range []string{"BUILD_NUMBER", "APP_ENV", "EXPO_PUBLIC_API", "VERSION", "VERSION_CODE", "GIT_COMMIT", "GIT_BRANCH", "PATHS", "HOMEPAGE", "CI", "API_TOKEN", "LDAP_URL", "BASH"} {
		require.False(t, store.RefusedName(name), name)
	}
}

func TestSecretsByName(t *testing.T) {
	t.Parallel()
	s, err := store.ParseSecrets([]byte(`{"TOKEN":"env","CERT":"file"}`))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"TOKEN": "env", "CERT": "file"}, s)
	many := `{"A":"env"`
	for i := range 64 {
		many += fmt.Sprintf(`,"A%d":"env"`, i)
	}
	for text, want := range map[string]string{
		`{"a":"env"}`: "invalid_secret", `{"A":"both"}`: `invalid_secret: secrets: A must be "env" or "file"`, `{"PATH":"env"}`: "reserved_param",
		`{"A":"env","A":"env"}`: "invalid_secret", many + "}": "too_many_secrets: secrets: at most 64", `["A"]`: "invalid_secret",
	} {
		_, err := store.ParseSecrets([]byte(text))
		require.ErrorContains(t, err, want)
	}
}

func TestLimitsOfABuild(t *testing.T) {
	t.Parallel()
	d, err := store.ParseTimeout("5400", 24*time.Hour)
	require.NoError(t, err)
	require.Equal(t, 90*time.Minute, d)
	for _, text := range []string{"", "0", "-1", "1.5", "90m", "7201", "99999999999999999999"} {
		_, err := store.ParseTimeout(text, 2*time.Hour)
		require.ErrorContains(t, err, "invalid_timeout: timeout must be whole seconds from 1 to 7200", text)
	}
	for _, text := range []string{"", "0", "11", "x"} {
		_, err := store.ParseMaxAttempts(text)
		require.ErrorContains(t, err, "invalid_max_attempts: max_attempts must be a whole number from 1 to 10", text)
	}
	codes, err := store.ParseRetryOn("[143, 75, 75]")
	require.NoError(t, err)
	require.Equal(t, []int{75, 143}, codes)
	for _, text := range []string{"", "75", "[0]", "[256]", `["75"]`, "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"} {
		_, err := store.ParseRetryOn(text)
		require.Equal(t, store.InvalidRetryOn, store.CodeOf(err), text)
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	for sent, want := range map[[2]string]string{
		{"commit", "ABCDEF0"}:                             `{"commit":"abcdef0"}`,
		{"branch", "feature/ü"}:                           `{"branch":"feature/ü"}`,
		{"dirty", "false"}:                                `{"dirty":false}`,
		{"remote", "https://u:p@example.com/a.git?t=1#x"}: `{"remote":"https://example.com/a.git"}`,
		{"remote", "https://token@example.com/a.git"}:     `{"remote":"https://example.com/a.git"}`,
		{"remote", "ssh://git:p@example.com:22/a.git"}:    `{"remote":"ssh://git@example.com:22/a.git"}`,
		{"remote", "git@example.com:team/a.git"}:          `{"remote":"git@example.com:team/a.git"}`,
		{"commit", "abcdef"}:                              "",
		{"commit", strings.Repeat("a", 65)}:               "",
		{"commit", "HEAD"}:                                "",
		{"commit", "0123abc\n"}:                           "",
		{"branch", "a\x1b[31m"}:                           "",
		{"branch", "a\u202eb"}:                            "",
		{"branch", "\xff"}:                                "",
		{"branch", ""}:                                    "",
		{"branch", "a\nb"}:                                "",
		{"branch", strings.Repeat("a", 256)}:              "",
		{"dirty", "1"}:                                    "",
		{"remote", "https://u:%zz@example.com/"}:          "",
		{"remote", "https://example.com/\x1b[31m"}:        "",
		{"remote", "https://" + strings.Repeat("a", 512)}: "",
	} {
		var f store.Facts
		err := f.Set(sent[0], sent[1])
		if want == "" {
			require.Equal(t, store.InvalidFact, store.CodeOf(err), sent)
			continue
		}
		require.NoError(t, err, sent)
		text, err := json.Marshal(f)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}

// register returns what a controller makes of capabilities.
func register(t *testing.T, capabilities string) store.Registration {
	t.Helper()
	r, err := store.ParseRegistration(nil, []byte(`"w"`), []byte(capabilities), nil, nil, nil)
	require.NoError(t, err)
	return r
}

func TestReservedLabelsFollowFromFeatures(t *testing.T) {
	t.Parallel()
	require.Empty(t, register(t, `{"labels":{"takt.env":"1","takt.timeout":"24"}}`).Labels, "what a worker sends does not count")
	r := register(t, `{"labels":{"xcode":"16","takt.env":"7"},"features":["env","exit","timeout","later"],"max_timeout":14399}`)
	require.Equal(t, store.Labels{"xcode": "16", "takt:env": "1", "takt:exit": "1", "takt:timeout": "2"}, r.Labels)
	require.Equal(t, []string{"env", "exit", "timeout"}, r.Features)
	require.Equal(t, store.Labels{"xcode": "16"}, r.Labels.Public())
	for seconds, hours := range map[string]string{"3599": "", "3600": "1", "28800": "8", "86400": "24", "1e12": "24"} {
		require.Equal(t, hours, register(t, `{"features":["timeout"],"max_timeout":`+seconds+`}`).Labels["takt:timeout"], seconds)
	}
	require.Empty(t, register(t, `{"max_timeout":86400}`).Labels)

	labels := store.Labels{}
	for i := range store.MaxLabels {
		labels[fmt.Sprint("l", i)] = ""
	}
	text := func(l store.Labels) string {
		text, err := json.Marshal(map[string]any{"labels": l, "features": []string{"env", "secrets"}})
		require.NoError(t, err)
		return string(text)
	}
	own := maps.Clone(labels)
	own["takt.env"], own["takt.secrets"], own["takt.exit"], own["takt.timeout"] = "1", "1", "1", "4"
	require.Len(t, register(t, text(own)).Labels, store.MaxLabels+2, "they don't count")
	labels["one more"] = ""
	_, err := store.ParseRegistration(nil, []byte(`"w"`), []byte(text(labels)), nil, nil, nil)
	require.Equal(t, store.RegistrationFailed, store.CodeOf(err))
	for _, bad := range []string{`{"features":"env"}`, `{"features":[1]}`, `{"max_timeout":"1h"}`, `{"max_timeout":-1}`} {
		_, err := store.ParseRegistration(nil, []byte(`"w"`), []byte(bad), nil, nil, nil)
		require.Equal(t, store.RegistrationFailed, store.CodeOf(err), bad)
	}
}

func TestNobodyRequiresReservedLabels(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"takt.env", "!takt.env", "xcode,takt.timeout>=4", "takt.x in (a,b)", "takt."} {
		_, err := store.ParseRequire("require", text)
		require.ErrorContains(t, err, "names that begin with takt. are reserved", text)
	}
	_, err := store.ParseRequire("require", "takt, taktx=1, x in (takt.env)")
	require.NoError(t, err)
	for _, text := range []string{"takt:env", "takt:timeout>=4", "x in (takt:env)"} {
		_, err := store.ParseRequire("require", text)
		require.Equal(t, store.InvalidArgument, store.CodeOf(err), text)
	}
}

func TestWhatInputsNeedOfAWorker(t *testing.T) {
	t.Parallel()
	need := func(own string, i *store.Inputs) string {
		t.Helper()
		r, err := store.StoredRequire(own).Need(i)
		require.NoError(t, err)
		return r.String()
	}
	require.Equal(t, "gpu", need("gpu", nil))
	require.Equal(t, "gpu", need("gpu", &store.Inputs{MaxAttempts: 3, Facts: store.Facts{Branch: "main"}}))
	require.Equal(t, "gpu,takt:env", need("gpu", &store.Inputs{Params: store.Params{"A": "1"}}))
	require.Equal(t, "gpu", need("gpu,takt:env,takt:timeout>=4", &store.Inputs{}), "a retry without them")
	for hours, step := range map[float64]string{0.1: "1", 1: "1", 1.01: "2", 3: "4", 8: "8", 9: "12", 12.5: "24", 24: "24"} {
		require.Equal(t, "takt:timeout>="+step, need("", &store.Inputs{Timeout: time.Duration(hours * float64(time.Hour))}))
	}
	full := strings.Repeat("a", 50)
	for i := range 7 {
		full += fmt.Sprintf(",a%d=%s", i, strings.Repeat("b", 60))
	}
	r := store.StoredRequire(full)
	require.LessOrEqual(t, len(full), 512)
	_, err := r.Need(&store.Inputs{Params: store.Params{"A": "1"}, Timeout: time.Hour, Secrets: map[string]string{"B": "env"}, RetryOn: []int{1}})
	require.ErrorContains(t, err, "require, with what the build's inputs need: at most 512 bytes")
}

func TestWhichFeaturesWorkersLack(t *testing.T) {
	t.Parallel()
	group := func(n string, labels store.Labels) store.FleetGroup {
		return store.FleetGroup{Name: n, State: "idle", N: 1, Labels: labels}
	}
	old, four, small := group("old", store.Labels{"xcode": "16"}), group("four", store.Labels{"xcode": "16", "takt:env": "1", "takt:timeout": "4"}), group("small", store.Labels{"takt:env": "1"})
	params, long := &store.Inputs{Params: store.Params{"A": "1"}}, &store.Inputs{Timeout: 10 * time.Hour}
	for _, c := range []struct {
		groups []store.FleetGroup
		own    string
		inputs *store.Inputs
		want   string
	}{
		{nil, "", params, ""},
		{[]store.FleetGroup{old}, "gpu", params, ""},
		{[]store.FleetGroup{old}, "", nil, ""},
		{[]store.FleetGroup{old}, "xcode", params, "It waits for a worker of takt 0.2 or newer: no worker for ios with xcode can give a build parameters."},
		{[]store.FleetGroup{old}, "", long, "It waits for a worker of takt 0.2 or newer: no worker for ios can give a build a time limit of 12 h."},
		{[]store.FleetGroup{old, four}, "", long, "No worker for ios can give a build a time limit of 12 h: the longest that one allows is 4 h (takt worker --max-timeout)."},
		{[]store.FleetGroup{small}, "", long, "No worker for ios can give a build a time limit of 12 h: the longest that one allows is less than 1 h (takt worker --max-timeout)."},
		{[]store.FleetGroup{old, four}, "", &store.Inputs{Secrets: map[string]string{"A": "env"}}, "No worker for ios can give a build secrets."},
		{[]store.FleetGroup{small, group("t", store.Labels{"takt:timeout": "24"})}, "", &store.Inputs{Params: params.Params, Timeout: time.Hour}, "No worker for ios has all that the build needs."},
	} {
		r, err := store.StoredRequire(c.own).Need(c.inputs)
		require.NoError(t, err)
		require.Equal(t, c.want, store.NewFleet(c.groups).Lacking(&store.Class{ID: 20, Platform: store.IOS, Require: r}))
	}
	r, err := store.StoredRequire("").Need(&store.Inputs{Params: params.Params, Timeout: 10 * time.Hour})
	require.NoError(t, err)
	near := store.NewFleet([]store.FleetGroup{old, four}).Nearest(&store.Class{ID: 21, Platform: store.IOS, Require: r})
	require.Equal(t, []string{"a time limit of 12 h (it allows 4 h)"}, near[0].Lacks)
	require.Equal(t, []string{"parameters", "a time limit of 12 h"}, near[1].Lacks)
}

func TestRemotesAreWithoutCredentials(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"https://example.com/a/b.git":                      "https://example.com/a/b.git",
		"https://me:secret@example.com:8443/a":             "https://example.com:8443/a",
		"https://ghp_secret@github.com/a/b":                "https://github.com/a/b",
		"https://oauth2:s%40cret@example.com/a":            "https://example.com/a",
		"https://example.com/a?private_token=secret#token": "https://example.com/a",
		"https://me:sec@ret@example.com/a":                 "https://example.com/a",
		"https://me:sec ret@example.com/a":                 "",
		"HTTPS://me:secret@example.com/a":                  "https://example.com/a",
		"ssh://git@example.com/a":                          "ssh://git@example.com/a",
		"ssh://git:secret@example.com/a":                   "ssh://git@example.com/a",
		"git@github.com:a/b.git":                           "git@github.com:a/b.git",
		"host:/srv/a.git":                                  "host:/srv/a.git",
		"me:secret@example.com:a":                          "",
		"me:secret@example.com/a":                          "",
		"/srv/git/a.git":                                   "",
		"../a":                                             "",
		"file:///srv/git/a.git":                            "",
		"ext::sh -c 'echo secret'":                         "",
		"codecommit::eu-west-1://secret@repo":              "",
		"persistent-https://me:secret@example.com/a":       "",
		"https://example.com/a\nb":                         "",
		"https://":                                         "",
		"":                                                 "",
		"https://example.com/" + strings.Repeat("x", 500):  "",
		"https://example.com/\xff":                         "",
	} {
		var f store.Facts
		if err := f.Set("remote", remote); want == "" {
			require.Equal(t, store.InvalidFact, store.CodeOf(err), remote)
			continue
		}
		require.Equal(t, want, f.Remote)
		require.NotContains(t, f.Remote, "secret")
	}
}
