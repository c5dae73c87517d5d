package operating

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
	"takt/storage/s3test"
	"takt/store"
	"takt/store/tracing/tracingtest"
)

// secrets are what must be seen nowhere, by what they are.
type secrets map[string]string

// requireAbsent checks that none of them is in text, which is called place, as it
// is or as PostgreSQL, JSON and URLs write bytes.
func (s secrets) requireAbsent(t *testing.T, place, text string) {
	t.Helper()
	for name, secret := range s {
		require.GreaterOrEqual(t, len(secret), 8, "%s is no secret", name)
		for _, form := range forms(secret) {
			if at := strings.Index(text, form); at >= 0 {
				require.Fail(t, "a secret is seen", "%s in %s: …%s", name, place, text[max(0, at-200):at])
			}
		}
	}
}

func forms(secret string) []string {
	whole := secret[:len(secret)/3*3] // what follows changes the last group only
	return []string{secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(whole)), base64.URLEncoding.EncodeToString([]byte(whole))}
}

const (
	applePassword    = "apple-password-hunter2"
	certPassword     = "p12-password-hunter2"
	wrongKey         = "wrong-key-that-is-nearly-right"
	wrongToken       = "wrongtokwrongtokwrongtokwrongtok"
	signingIdentity  = "the-signing-identity-itself"
	collectorKey     = "the-key-of-the-collector"
	urlPassword      = "password-in-a-url-5"
	unreadableSecret = "secret-in-a-body-that-is-no-JSON"
	storedSecret     = "stored-secret-hunter2"
)

// talkative makes the server write down every statement with its parameters.
func talkative(t *testing.T, c *process.Controller) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), c.DatabaseURL())
	require.NoError(t, err)
	for _, sql := range []string{
		"ALTER SYSTEM SET log_statement = 'all'", "ALTER SYSTEM SET log_min_duration_statement = 0",
		"ALTER SYSTEM SET log_min_messages = 'debug1'", "ALTER SYSTEM SET log_parameter_max_length = -1",
		"ALTER SYSTEM SET log_parameter_max_length_on_error = -1", "ALTER SYSTEM SET log_connections = on",
		"SELECT pg_reload_conf()",
	} {
		_, err := db.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	return db
}

// call sends a request as nobody's client would and returns what comes back.
func call(t *testing.T, method, url string, header map[string]string, body io.Reader) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	require.NoError(t, err)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(raw)
}

// certificates is an archive whose content can be seen in it.
func certificates(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := zip.NewWriter(&out)
	for name, content := range map[string]string{"password.txt": certPassword, "identity.p12": signingIdentity} {
		w, err := zw.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		require.NoError(t, err)
		_, err = io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, zw.Close())
	require.Contains(t, out.String(), certPassword)
	return out.Bytes()
}

// submitAsBefore submits as the old command line does, with the account's
// password, and names the key in the query too.
func submitAsBefore(t *testing.T, c *process.Controller) api.Submitted {
	t.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for _, f := range []struct{ name, file, content string }{
		{"source", "project.tar.gz", string(takttest.Zip(t, map[string]string{"order.txt": "x"}))},
		{"certs", "certs.zip", string(certificates(t))},
		{"platform", "", "ios"},
		{"appleId", "", "me@example.org"},
		{"applePassword", "", applePassword},
	} {
		var part io.Writer
		var err error
		if f.file != "" {
			part, err = w.CreateFormFile(f.name, f.file)
		} else {
			part, err = w.CreateFormField(f.name)
		}
		require.NoError(t, err)
		_, err = io.WriteString(part, f.content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	reply := call(t, "POST", c.URL+"/api/builds/submit?api_key="+c.APIKey+"&password="+applePassword,
		map[string]string{"X-API-Key": c.APIKey, "Content-Type": w.FormDataContentType()}, &form)
	_, rest, ok := strings.Cut(reply, `"id":"`)
	require.True(t, ok, reply)
	id, _, _ := strings.Cut(rest, `"`)
	_, rest, _ = strings.Cut(reply, `"access_token":"`)
	token, _, _ := strings.Cut(rest, `"`)
	return api.Submitted{ID: id, AccessToken: token}
}

// misuse shows secrets where they don't belong and credentials that are wrong.
func misuse(t *testing.T, c *process.Controller, build api.Submitted, workerToken string) {
	t.Helper()
	key := map[string]string{"X-API-Key": c.APIKey, "Content-Type": "application/json"}
	for _, target := range []string{
		"/api/workers/poll?worker_id=nobody&token=" + workerToken, "/api/builds/" + build.ID + "/status?access_token=" + build.AccessToken,
		"/admin/tree?admin_key=" + c.AdminKey, "/api/nothing/" + c.APIKey,
		"/api/builds?status=" + c.AdminKey, "/" + wrongKey,
	} {
		call(t, "GET", c.URL+target, key, nil)
	}
	for name, value := range map[string]string{"X-API-Key": wrongKey, "X-Admin-Key": wrongKey, "X-Build-Token": wrongToken} {
		call(t, "GET", c.URL+"/api/builds/"+build.ID+"/status", map[string]string{name: value}, nil)
		call(t, "GET", c.URL+"/admin/tree", map[string]string{name: value}, nil)
	}
	call(t, "GET", c.URL+"/api/workers/poll", map[string]string{"X-API-Key": c.APIKey, "X-Worker-Token": wrongToken}, nil)
	call(t, "POST", c.URL+"/api/workers/register", key, strings.NewReader(`{"name":"`+unreadableSecret+`",`))
	for _, body := range []string{`{"value":"` + unreadableSecret + `",`, `{"value":"` + unreadableSecret + `!","all_keys":true}`, unreadableSecret} {
		call(t, "PUT", c.URL+"/admin/secrets/APP_TOKEN", map[string]string{"X-Admin-Key": c.AdminKey, "Content-Type": "application/json"}, strings.NewReader(body))
	}
	call(t, "POST", c.URL+"/api/workers/register", key, strings.NewReader(`{"name":"w","capabilities":{},"apiKey":"`+c.APIKey+`"}`))
	call(t, "GET", c.URL+"/livez", map[string]string{"X-Request-Id": c.APIKey + " " + workerToken, "Authorization": "Bearer " + c.APIKey, "Cookie": "s=" + c.AdminKey}, nil)
}

// dump returns every row of every table.
func dump(t *testing.T, db *pgx.Conn) string {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Greater(t, len(tables), 5)
	var out strings.Builder
	for _, table := range tables {
		var all string
		require.NoError(t, db.QueryRow(t.Context(), `SELECT coalesce(string_agg(t::text, E'\n'), '') FROM `+table+` t`).Scan(&all))
		fmt.Fprintf(&out, "%s\n%s\n", table, all)
	}
	return out.String()
}

func TestNoSecretIsSeenWhereItDoesNotBelong(t *testing.T) {
	t.Parallel()
	env, bucket, collector := takttest.NewEnv(t), s3test.Start(t), tracingtest.Start(t)
	given := secrets{
		"TAKT_OLD_ENCRYPTION_KEYS":   "YW4gb2xkIGtleSBvZiBleGFjdGx5IDMyIGJ5dGVzIC4=",
		"TAKT_HUBSPOT_CLIENT_SECRET": "hubspot-secret-of-this-test-3", "TAKT_GITHUB_TOKEN": "ghp_token-of-this-test-4",
	}
	settings := append(bucket.Env(), "TAKT_LOG=debug,json", "TAKT_STORAGE=dual", "TAKT_OTLP="+collector.Endpoint, "OTEL_EXPORTER_OTLP_HEADERS=x-key="+collectorKey,
		"TAKT_HUBSPOT_CLIENT_ID=7", "TAKT_HUBSPOT_API_URL=http://somebody:"+urlPassword+"@127.0.0.1:1", "TAKT_PUBLIC_URL=http://somebody:"+urlPassword+"@127.0.0.1:1")
	for name, value := range given {
		settings = append(settings, name+"="+value)
	}
	c := env.StartController("takt", settings...)
	db := talkative(t, c)
	build := submitAsBefore(t, c)
	hidden := secrets{
		"the API key": c.APIKey, "the admin key": c.AdminKey, "the build's token": build.AccessToken,
		"the account's password": applePassword, "the certificate's password": certPassword, "the certificate": signingIdentity,
		"a wrong key": wrongKey, "a wrong token": wrongToken, "a broken body": unreadableSecret, "the bucket's secret": s3test.SecretKey,
		"the collector's key":   collectorKey,
		"a stored secret":       storedSecret,
		"a URL's password":      urlPassword,
		"the encryption key":    process.ReadWord(filepath.Join(c.DataDir, "encryption-key")),
		"the database password": process.ReadWord(filepath.Join(c.DataDir, "postgres.password")),
	}
	maps.Copy(hidden, given)
	w, err := env.Worker(c, "one", takttest.CopyOrder, nil, "--log", "debug,json", "--heartbeat", "500ms", "--otlp", collector.Endpoint)
	require.NoError(t, err)
	t.Cleanup(w.Kill)
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, build.ID).Status == string(store.Completed) })
	h := takttest.Register(t, c, 1)
	hidden["a worker's first token"] = h.Token
	for i := range 3 {
		h.Poll(t)
		hidden[fmt.Sprintf("a worker's token, poll %d", i)] = h.Token
	}
	second, err := c.Client.Submit(t.Context(), client.Submit{
		Platform: store.IOS, Source: client.Bytes([]byte("x")), IdempotencyKey: "once-and-never-again-0123456789",
	})
	require.NoError(t, err)
	hidden["the other build's token"], hidden["an idempotency key"] = second.AccessToken, "once-and-never-again-0123456789"
	misuse(t, c, build, h.Token)
	_, err = client.Call(t.Context(), c.Client, api.SetSecret, api.SetSecretIn{Name: "APP_TOKEN", Body: api.SecretContent{Value: []byte(storedSecret), AllKeys: true}})
	require.NoError(t, err)

	hidden.requireAbsent(t, "the database", dump(t, db))
	// The other has the password of the first one's database in a URL.
	other := env.StartController("other", append(settings, c.Shared()...)...)
	for _, from := range []*process.Controller{c, other} {
		hidden.requireNotInBundle(t, from, filepath.Join(env.Dir, from.Name+".tar.gz"))
	}
	require.NoError(t, other.Stop(t.Context(), takttest.Patience))
	require.NoError(t, db.Close(t.Context()))
	require.NoError(t, w.Stop(t.Context(), takttest.Patience))
	require.NoError(t, c.Stop(t.Context(), takttest.Patience))

	require.Contains(t, c.Output(), "INSERT INTO", "the database server's statements are in the log")
	require.Contains(t, c.Output(), `"level":"debug"`)
	hidden.requireAbsent(t, "the controller's log", c.Output())
	hidden.requireAbsent(t, "the worker's log", w.Output())
	spans, raw := collector.Spans()
	seen := map[string]bool{}
	for _, span := range spans {
		seen[span.Name] = true
	}
	for _, name := range []string{"POST /api/builds", "insert_builds", "storage send", "PUT", "GET /api/builds/:id/certs", "download"} {
		require.Contains(t, seen, name)
	}
	hidden.requireAbsent(t, "the traces", string(raw))
	keys := map[string]bool{"api-key": true, "admin-key": true, "encryption-key": true, "postgres.password": true}
	hidden.requireNotBelow(t, c.DataDir, keys)
	hidden.requireNotBelow(t, bucket.Dir, nil)
	hidden.requireNotBelow(t, env.WorkerState("one"), nil)
}

// requireNotBelow looks through every file of a directory, but those of except.
func (s secrets) requireNotBelow(t *testing.T, dir string, except map[string]bool) {
	t.Helper()
	seen := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || except[d.Name()] {
			return err
		}
		raw, err := os.ReadFile(path)
		seen++
		for _, name := range slices.Sorted(maps.Keys(s)) {
			require.False(t, bytes.Contains(raw, []byte(s[name])), "%s is in %s", name, path)
		}
		return err
	}))
	require.Positive(t, seen, dir)
}

// requireNotInBundle has takt debug bundle write all that it knows of a controller.
func (s secrets) requireNotInBundle(t *testing.T, c *process.Controller, file string) {
	t.Helper()
	takttest.Order(t, c, client.Order{Action: "restart", Path: "orchestration/janitor", Reason: "for the bundle"})
	var out bytes.Buffer
	root := command.New(takttest.Environment("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey, "TAKT_ADMIN_KEY", c.AdminKey))
	require.Zero(t, cli.Execute(t.Context(), root, []string{"debug", "bundle", "-o", file, "--record", "1s"}, &out, &out), out.String())
	files := takttest.UnpackBundle(t, file)
	require.NotContains(t, files, "errors.txt")
	for name, part := range map[string]string{
		"tree.json": `"takt/database/pool"`, "metrics.txt": "takt_queue_pending_builds", "build.json": `"-compiler"`,
		"settings.json": `"s3_secret_key": "********"`, "log.jsonl": `"message"`, "database.json": `"relname": "builds"`,
		"goroutines.txt": "goroutine 1 [", "heap.pprof": "inuse_space", "cpu.pprof": "nanoseconds", "supervision.jsonl": `"path":"takt/database/pool"`,
	} {
		require.Contains(t, files[name], part, name)
	}
	for name, content := range files {
		s.requireAbsent(t, name, content)
	}
}

// TestNoTokenIsSeenWhereItDoesNotBelong has HubSpot repeat secrets in its errors,
// and PostgreSQL log all that it is told.
func TestNoTokenIsSeenWhereItDoesNotBelong(t *testing.T) {
	t.Parallel()
	env := takttest.NewThrottleEnv(t, hubspottest.Config{RollingLimit: -1, Rotate: true, Echo: true})
	c := env.StartThrottle("takt", "TAKT_LOG=debug")
	db := talkative(t, c)
	env.Install(c, takttest.PerSecond(100), takttest.Portal)
	fire := func(id string) {
		t.Helper()
		require.True(t, env.Fire(t.Context(), c.URL, takttest.Portal, id))
	}
	fire("first")
	takttest.Eventually(t, "it is completed", func() bool { return env.HubSpot.Distinct() == 1 })
	env.HubSpot.Revoke(takttest.Portal)
	fire("second")
	takttest.Eventually(t, "it is completed with a refreshed token", func() bool { return env.HubSpot.Distinct() == 2 })
	require.Equal(t, 1, env.HubSpot.Refreshes(takttest.Portal))

	// Errors of every kind that name the token in use.
	tokens := strings.Join(env.HubSpot.Tokens(), " ")
	access := tokens[strings.LastIndex(tokens, "access-"):]
	access, _, _ = strings.Cut(access, " ")
	for i, status := range []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusInternalServerError} {
		env.HubSpot.Fail(takttest.Portal, hubspottest.Fault{
			Status: status, Body: `{"message":"` + access + ` is not welcome"}`, Times: 1, Header: map[string]string{"Retry-After": "0.1"},
		})
		fire(fmt.Sprintf("unwelcome-%d", i))
		takttest.Eventually(t, "it is completed in the end", func() bool { return env.HubSpot.Distinct() == 3+i })
	}
	misuseOAuth(t, env, c)
	env.HubSpot.Uninstall(takttest.Portal)
	fire("third")
	takttest.Eventually(t, "operators are told that there is no token", func() bool {
		return strings.Contains(dump(t, db), "missing or unknown refresh token")
	})

	hidden := secrets{
		"client secret": env.HubSpot.Config().ClientSecret, "the API key": c.APIKey, "the admin key": c.AdminKey,
		"the encryption key": process.ReadWord(filepath.Join(c.DataDir, "encryption-key")),
	}
	for i, token := range env.HubSpot.Tokens() {
		kind, _, _ := strings.Cut(token, "-")
		hidden[fmt.Sprintf("%s %d", kind, i)] = token
		hidden[fmt.Sprintf("a part of %s %d", kind, i)] = token[:len(kind)+1+12]
	}
	require.Greater(t, len(hidden), 12)
	hidden.requireAbsent(t, "the database", dump(t, db))
	for _, path := range []string{"/metrics", "/health", "/api/config/62515", "/admin/throttle/queues", "/admin/audit"} {
		hidden.requireAbsent(t, path, call(t, "GET", c.URL+path, map[string]string{"X-API-Key": c.APIKey, "X-Admin-Key": c.AdminKey}, nil))
	}
	require.NoError(t, db.Close(context.WithoutCancel(t.Context())))
	require.NoError(t, c.Stop(t.Context(), takttest.Patience))
	for _, text := range []string{"oauth_tokens", "is not welcome", "missing or unknown auth code", "missing or unknown refresh token"} {
		require.Contains(t, c.Output(), text, "what would tell is there")
	}
	hidden.requireAbsent(t, "takt's log, and PostgreSQL's", c.Output())
	hidden.requireNotBelow(t, c.DataDir, map[string]bool{"api-key": true, "admin-key": true, "encryption-key": true})
}

// misuseOAuth shows codes and tokens where they are refused.
func misuseOAuth(t *testing.T, env *takttest.ThrottleEnv, c *process.Controller) {
	t.Helper()
	require.NoError(t, env.HubSpot.Install(t.Context(), c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", takttest.Portal), "again")
	for _, token := range env.HubSpot.Tokens() {
		call(t, "GET", c.URL+"/api/oauth/callback?state=nobody&code="+token, nil, nil)
		// With a state that is good, the code is one that was used.
		err := env.HubSpot.InstallWith(t.Context(), c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", takttest.Portal, token)
		require.ErrorContains(t, err, "HubSpot refused the authorization")
		require.NotContains(t, err.Error(), token)
	}
}
