package http_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// text is a field of a form.
func textPart(name, content string) part { return part{name: name, content: content} }

// inputs are the fields of all inputs that this controller takes.
func inputs() []part {
	return []part{
		textPart("params", `{"BUILD_NUMBER":"42","APP_TEXT":"two\nlines"}`), textPart("params_optional", "true"), textPart("timeout", "5400"), textPart("max_attempts", "2"),
		textPart("commit", "0123456789ABCDEF"), textPart("branch", "main"), textPart("dirty", "true"), textPart("remote", "https://me:secret@example.com/a.git"),
	}
}

const facts = `"commit":"0123456789abcdef","branch":"main","dirty":true,"remote":"https://example.com/a.git"`

// capable registers a worker that can do all that builds need, for 4 hours.
func (b *fixture) capable() api.Registered {
	b.t.Helper()
	return b.enroll(`{"labels":{"takt.env":"no"},"features":["env","secrets","exit","timeout","later"],"max_timeout":14400}`)
}

// held returns the reply to a worker that asks for the inputs of a build.
func (b *fixture) held(build, worker string, more ...string) reply {
	b.t.Helper()
	return b.send("GET", "/api/builds/"+build+"/inputs", key(append([]string{"X-Worker-Id", worker}, more...)...), "")
}

func TestInputsGoFromSubmitterToWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.form("/api/builds", key(), append(inputs(), source("x"), ios(), textPart("labels", `{"a":"1"}`))...)
	require.Equal(t, 201, r.status, r.body)
	const limits = `"params_optional":true,"timeout":5400,"max_attempts":2,` + facts + `}`
	require.Contains(t, r.body, `"inputs":{"params":["APP_TEXT","BUILD_NUMBER"],`+limits, "the names, not the values")
	s := decode[api.Submitted](t, r)
	shown := `"inputs":{"params":{"APP_TEXT":"two\nlines","BUILD_NUMBER":"42"},` + limits
	for _, path := range []string{"/api/builds", "/api/builds/" + s.ID, "/api/builds/" + s.ID + "/status"} {
		r := b.send("GET", path, key(), "")
		require.Contains(t, r.body, shown, path)
		require.NotContains(t, r.body, "takt:", "what the inputs need of a worker is not what was required")
		require.NotContains(t, r.body, `"ended"`)
	}
	require.NotContains(t, b.logs.String(), "two\\nlines")

	require.Nil(t, b.poll(b.enroll(`{"labels":{"takt.env":"1","takt.timeout":"24"}}`).AccessToken).Job, "labels that a worker sends are no features")
	why := decode[api.BuildWhy](t, b.send("GET", "/api/builds/"+s.ID+"/why", key(), ""))
	require.Equal(t, "It waits for a worker of takt 0.2 or newer: no worker for ios can give a build parameters, a time limit of 2 h.", why.Reason)
	require.True(t, why.Unmatched)

	w := b.capable()
	require.Equal(t, []string{"env", "secrets", "exit", "timeout"}, w.Features)
	require.Empty(t, b.worker(w.ID).Labels)
	job := b.poll(w.AccessToken).Job
	require.Equal(t, s.ID, job.ID)
	require.Equal(t, "/api/builds/"+s.ID+"/inputs", *job.InputsURL)
	r = b.held(s.ID, w.ID)
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, "no-store", r.header.Get("Cache-Control"))
	require.JSONEq(t, `{"params":{"APP_TEXT":"two\nlines","BUILD_NUMBER":"42"},"params_optional":true,"secrets":[],"timeout":5400,"labels":{"a":"1"},"submitter":"",`+facts+`}`, strings.TrimSpace(r.body))
	require.Equal(t, "building", b.status(s.ID).State, "it is a sign of life")
}

func TestOnlyTheHolderGetsInputs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.submit(inputs()...)
	w, other := b.capable(), b.capable()
	requireProblem(t, b.held(s.ID, w.ID), "Build not assigned to this worker", "not_assigned")
	b.poll(w.AccessToken)
	require.Equal(t, 403, b.held(s.ID, other.ID).status)
	require.Equal(t, 403, b.held(s.ID, "nobody").status)
	require.Equal(t, 401, b.send("GET", "/api/builds/"+s.ID+"/inputs", key(), "").status)
	require.Equal(t, 401, b.send("GET", "/api/builds/"+s.ID+"/inputs", map[string]string{"X-Build-Token": s.AccessToken, "X-Worker-Id": w.ID}, "").status)
	require.Equal(t, 200, b.held(s.ID, w.ID, "X-Build-Attempt", "1").status)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)
	require.Equal(t, 403, b.held(s.ID, w.ID).status, "the attempt has ended")
}

func TestBuildsWithoutInputsSayNothingOfThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.form("/api/builds", key(), source("x"), ios(), textPart("params", "{}"), textPart("params_optional", "true"))
	require.Equal(t, 201, r.status, r.body)
	require.NotContains(t, r.body, "inputs")
	s, w := decode[api.Submitted](t, r), b.enroll(`{}`)
	require.NotContains(t, b.send("GET", "/api/builds/"+s.ID+"/status", key(), "").body, "inputs")
	p := b.send("GET", "/api/workers/poll", key("X-Worker-Token", w.AccessToken), "")
	require.NotContains(t, p.body, "inputs_url")
	require.JSONEq(t, `{"params":{},"params_optional":false,"secrets":[],"timeout":0,"labels":{},"submitter":""}`, strings.TrimSpace(b.held(s.ID, w.ID).body))
	require.Nil(t, w.Features)
}

func TestSubmitRefusesWrongInputs(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.MaxBuildTimeout = 2 * 3600e9 })
	many, longer := `{"A":"1"`, ""
	for i := range 7 {
		longer += fmt.Sprintf(",a%d=%s", i, strings.Repeat("c", 60))
	}
	for i := range 64 {
		many += fmt.Sprintf(`,"A%d":"1"`, i)
	}
	for name, c := range map[string]struct {
		field, value string
		status       int
		code         store.Code
		text         string
	}{
		"65 parameters":      {"params", many + "}", 400, store.TooManyParams, "Invalid request: params: at most 64, got 65"},
		"a value of 1 MB":    {"params", `{"A":"` + strings.Repeat("x", 1<<20) + `"}`, 413, store.ParamsTooLarge, "params: names and values have at most 32768 bytes together"},
		"a bit too large":    {"params", `{"A":"` + strings.Repeat("x", 32<<10) + `"}`, 413, store.ParamsTooLarge, "params: names and values have at most 32768 bytes together"},
		"a control in names": {"params", "{\"A\\u001b[31m\":\"1\"}", 400, store.InvalidParam, ""},
		"a NUL":              {"params", `{"A":"\u0000"}`, 400, store.InvalidParam, "Invalid request: params: the value of A must be UTF-8 text without NUL"},
		"no UTF-8":           {"params", "{\"A\":\"\xff\"}", 400, store.InvalidParam, "Invalid request: params: must be UTF-8 text"},
		"no object":          {"params", `["A"]`, 400, store.InvalidParam, "Invalid request: params: must be a JSON object of strings"},
		"PATH":               {"params", `{"PATH":"/tmp"}`, 400, store.ReservedParam, "Invalid request: params: no build may set PATH, because it changes what programs run"},
		"optional":           {"params_optional", "1", 400, store.InvalidArgument, "Invalid request: params_optional must be true or false"},
		"a secret's name":    {"secrets", `{"a":"env"}`, 400, store.InvalidSecret, ""},
		"an unknown secret":  {"secrets", `{"TOKEN":"env"}`, 422, store.UnknownSecret, "There is no secret TOKEN: an operator sets it with takt secret set"},
		"a timeout":          {"timeout", "7201", 400, store.InvalidTimeout, `Invalid request: timeout must be whole seconds from 1 to 7200, got "7201"`},
		"attempts":           {"max_attempts", "11", 400, store.InvalidMaxAttempts, `Invalid request: max_attempts must be a whole number from 1 to 10, got "11"`},
		"exit codes":         {"retry_on", "[0]", 400, store.InvalidRetryOn, ""},
		"a commit":           {"commit", "HEAD", 400, store.InvalidFact, "Invalid request: commit: must be 7 to 64 hexadecimal digits"},
		"a branch":           {"branch", "a\nb", 400, store.InvalidFact, ""},
		"a remote":           {"remote", "https://a:%zz@b", 400, store.InvalidFact, "Invalid request: remote: must be the URL of a repository on a network, such as https://example.com/app.git, of at most 512 bytes"},
		"a reserved label":   {"require", "takt.env", 400, store.InvalidArgument, `Invalid request: require: "takt.env": names that begin with takt. are reserved`},
		"too many needs":     {"require", strings.TrimPrefix(longer, ",") + ",a" + strings.Repeat("d", 58), 400, store.InvalidArgument, "Invalid request: require, with what the build's inputs need: at most 512 bytes"},
	} {
		parts := []part{source("x"), ios(), textPart(c.field, c.value)}
		if c.field == "require" {
			parts = append(parts, textPart("params", `{"A":"1"}`))
		}
		r := b.form("/api/builds", key(), parts...)
		require.Equal(t, c.status, r.status, "%s: %s", name, r.body)
		p := decode[api.Problem](t, r)
		require.Equal(t, string(c.code), p.Code, name)
		if c.text != "" {
			require.Equal(t, c.text, p.Error, name)
		}
		b.requireNothing()
	}
	for _, twice := range inputs() {
		r := b.form("/api/builds", key(), source("x"), ios(), twice, twice)
		if twice.name == "timeout" {
			continue // too long here
		}
		requireProblem(t, r, "Invalid request: "+twice.name+" is there more than once", "invalid_argument")
		b.requireNothing()
	}
}

func TestInputsAreAPartOfWhatIsSubmittedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := append(inputs(), source("x"), ios())
	first := b.under("k", "/api/builds", all...)
	require.Equal(t, 201, first.status, first.body)
	require.Equal(t, first.body, b.under("k", "/api/builds", all...).body, "the reply says again what was taken")
	for i := range inputs() {
		fewer := append(append([]part{}, all[:i]...), all[i+1:]...)
		requireProblem(t, b.under("k", "/api/builds", fewer...), "Idempotency-Key was used for another submission", "idempotency_mismatch")
	}
	require.Equal(t, 1, b.count())
}

func TestARetryHasTheSameInputs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.submit(append(inputs(), textPart("require", "xcode"))...)
	retry := func(of api.Submitted, header map[string]string, body string) reply {
		t.Helper()
		require.Contains(t, []int{200, 400}, b.send("POST", "/api/builds/"+of.ID+"/cancel", key(), "").status)
		header["Content-Type"] = "application/json"
		return b.send("POST", "/api/builds/"+of.ID+"/retry", header, body)
	}
	token := map[string]string{"X-Build-Token": s.AccessToken}
	requireProblem(t, retry(s, token, `{"params":{"A":"1"}}`), "A build token can't change parameters: use a key that may retry the build", "forbidden")
	hook := map[string]string{"X-API-Key": b.named("hook", store.ScopeWebhook).Key, "X-Build-Token": s.AccessToken}
	requireProblem(t, retry(s, hook, `{"params":{"A":"1"}}`), "A build token can't change parameters: use a key that may retry the build", "forbidden")
	r := retry(s, token, "")
	require.Equal(t, 200, r.status, r.body)
	again := decode[api.Submitted](t, r)
	require.Equal(t, []string{"APP_TEXT", "BUILD_NUMBER"}, again.Inputs.Params)
	require.Equal(t, b.status(s.ID).Inputs, b.status(again.ID).Inputs)
	require.Equal(t, "xcode", b.status(again.ID).Require)

	r = retry(again, key(), `{"params":{"BUILD_NUMBER":"43","NEW":"","APP_TEXT":null}}`)
	require.Equal(t, 200, r.status, r.body)
	require.Contains(t, r.body, `"inputs":{"params":["BUILD_NUMBER","NEW"],`)
	changed := decode[api.Submitted](t, r)
	require.Equal(t, map[string]string{"BUILD_NUMBER": "43", "NEW": ""}, b.status(changed.ID).Inputs.Params)
	var detail string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT (detail - 'request_id')::text FROM audit WHERE action = 'retry' ORDER BY id DESC LIMIT 1`).Scan(&detail))
	require.JSONEq(t, `{"params": ["APP_TEXT", "BUILD_NUMBER", "NEW"]}`, detail, "without values")
	for body, code := range map[string]string{
		`{"params":{"PATH":"1"}}`: "reserved_param", `{"params":{"a":"1"}}`: "invalid_param", `{"params":{"\u0000":null}}`: "invalid_param", `{"params":[]}`: "invalid_argument",
		`{"params":{"A":"` + strings.Repeat("x", 32<<10) + `"}}`: "params_too_large",
	} {
		require.Equal(t, code, decode[api.Problem](t, retry(changed, key(), body)).Code)
	}
	r = retry(changed, key(), `{"params":{"BUILD_NUMBER":null,"NEW":null}}`)
	require.Equal(t, 200, r.status, r.body)
	mac := b.enroll(`{"labels":{"xcode":"16"},"features":["timeout"],"max_timeout":7200}`)
	require.NotNil(t, b.poll(mac.AccessToken).Job, "it needs no worker with parameters any more")
}

// What a worker, a submitter and an operator see of a build that is tried again by exit code.
func TestABuildIsTriedAgainByExitCode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.form("/api/builds", key(), source("x"), ios(), textPart("retry_on", "[143,75]"))
	require.Equal(t, 201, r.status, r.body)
	require.Contains(t, r.body, `"inputs":{"retry_on":[75,143]}`)
	s, old := decode[api.Submitted](t, r), b.enroll(`{"features":["env"]}`)
	require.Nil(t, b.poll(old.AccessToken).Job, "it could not say how the command ended")
	w := b.capable()
	require.Equal(t, s.ID, b.poll(w.AccessToken).Job.ID)
	const again = `{"success":true,"status":"pending","message":"Build is pending again"}`
	for _, how := range []string{"reported", "repeated"} {
		r = b.form("/api/workers/upload", key(), textPart("build_id", s.ID), textPart("worker_id", w.ID), textPart("success", "false"), textPart("exit_code", "75"))
		require.Equal(t, 200, r.status, how)
		require.JSONEq(t, again, r.body, how)
	}
	require.Equal(t, "pending", b.status(s.ID).State)
	require.Equal(t, 75, *b.status(s.ID).Ended.ExitCode)
	why := decode[api.BuildWhy](t, b.send("GET", "/api/builds/"+s.ID+"/why", key(), ""))
	require.Regexp(t, `^It waits until \d\d:\d\d:\d\d UTC for its retry after exit code 75\.$`, why.Reason)
	require.NotNil(t, why.RetryAt)
	require.Contains(t, b.send("GET", "/api/builds/"+s.ID+"/timeline", key(), "").body, `"reason":"exit"`)

	requeue := func() reply {
		return b.send("POST", "/api/builds/"+s.ID+"/requeue", key("X-Admin-Key", adminKey, "Content-Type", "application/json"), `{"reason":"now"}`)
	}
	require.Equal(t, 200, requeue().status)
	require.Equal(t, 409, requeue().status)
	why = decode[api.BuildWhy](t, b.send("GET", "/api/builds/"+s.ID+"/why", key(), ""))
	require.Nil(t, why.RetryAt)
	require.Equal(t, s.ID, b.poll(w.AccessToken).Job.ID)
	require.Nil(t, b.status(s.ID).Ended)
	r = b.json("POST", "/api/workers/fail", key(), `{"build_id":"`+s.ID+`","exit_code":143}`)
	require.JSONEq(t, again, r.body)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)
	r = b.send("POST", "/api/builds/"+s.ID+"/retry", key(), "")
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, []int{75, 143}, b.status(decode[api.Submitted](t, r).ID).Inputs.RetryOn)
}

func TestHowABuildEndedIsShown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for fields, want := range map[string]string{
		`"exit_code":75`: `{"cause":"failed","exit_code":75}`, `"exit_code":137,"signal":9`: `{"cause":"failed","signal":9}`, `"timed_out":true,"signal":15`: `{"cause":"timeout","timed_out":true}`,
		`"exit_code":"x"`: `{"cause":"failed"}`, `"exit_code":-1`: `{"cause":"failed"}`, `"timed_out":false`: `{"cause":"failed"}`,
	} {
		shown := func(s api.Submitted, how string) {
			t.Helper()
			for _, path := range []string{"/api/builds/" + s.ID, "/api/builds/" + s.ID + "/status"} {
				require.Contains(t, b.send("GET", path, key(), "").body, `"ended":`+want, how)
			}
		}
		s, _ := b.assigned()
		require.Equal(t, 200, b.json("POST", "/api/workers/fail", key(), `{"build_id":"`+s.ID+`",`+fields+`}`).status)
		shown(s, "fail")
		s, w := b.assigned()
		parts := []part{textPart("build_id", s.ID), textPart("worker_id", w.ID), textPart("success", "false")}
		for field := range strings.SplitSeq(fields, ",") {
			name, value, _ := strings.Cut(field, ":")
			parts = append(parts, textPart(strings.Trim(name, `"`), strings.Trim(value, `"`)))
		}
		require.Equal(t, 200, b.form("/api/workers/upload", key(), parts...).status)
		shown(s, "upload")
	}
	s, w := b.assigned()
	r := b.form("/api/workers/upload", key(), textPart("build_id", s.ID), textPart("worker_id", w.ID), textPart("success", "true"), textPart("exit_code", "0"), part{"result", "a.ipa", "app"})
	require.Equal(t, 200, r.status, r.body)
	require.NotContains(t, b.send("GET", "/api/builds/"+s.ID+"/status", key(), "").body, `"ended"`)
}
