package http_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

func TestSubmitOnBothPaths(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for path, status := range map[string]int{"/api/builds": 201, "/api/builds/submit": 200} {
		// As the published command line sends it: the source first, the name a
		// lie, and things that nobody may keep.
		r := b.form(path, key(), source("PK\x03\x04 zip"), part{name: "platform", content: "android"},
			part{"profile", "p.mobileprovision", "profile"}, part{name: "appleId", content: "me@example.org"},
			part{name: "applePassword", content: "hunter2-secret"})
		require.Equal(t, status, r.status, r.body)
		requireShape(t, "submitted", r)
		require.Equal(t, 1, strings.Count(r.body, `"id":"`))
		s := decode[api.Submitted](t, r)
		require.Regexp(t, `^[A-Za-z0-9_-]{21}$`, s.ID)
		require.Regexp(t, `^[A-Za-z0-9_-]{43}$`, s.AccessToken)
		require.Equal(t, "pending", s.Status)
		require.Equal(t, "android", s.Platform)
		stored, err := os.ReadFile(filepath.Join(b.dir, "builds", s.ID, "source.zip"))
		require.NoError(t, err)
		require.Equal(t, "PK\x03\x04 zip", string(stored))
		require.Equal(t, "Build submitted", b.messages(s.ID)[0])
		require.NotContains(t, b.logs.String(), s.AccessToken)
	}
	require.Len(t, b.files(), 2, "nothing but the sources is kept")
	for _, secret := range []string{"hunter2-secret", "me@example.org", apiKey} {
		require.NotContains(t, b.logs.String(), secret)
	}
}

func TestSubmitRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.MaxSource, c.MaxCerts, c.MaxField, c.MaxParts = 100, 10, 20, 6 })
	ios := part{name: "platform", content: "ios"}
	many := []part{source("x"), ios}
	for range 7 {
		many = append(many, part{name: "more", content: "x"})
	}
	tests := map[string]struct {
		parts  []part
		status int
		text   string
	}{
		"no parts":               {nil, 400, "Source file required"},
		"no source":              {[]part{ios}, 400, "Source file required"},
		"an empty source field":  {[]part{{name: "source"}, ios}, 400, "Source file required"},
		"a text as source":       {[]part{{name: "source", content: "abc"}, ios}, 400, "Source file required"},
		"a text as certs":        {[]part{source("x"), {name: "certs", content: "abc"}, ios}, 400, "Certs file required"},
		"no platform":            {[]part{source("x")}, 400, "Valid platform required (ios|android)"},
		"an unknown platform":    {[]part{source("x"), {name: "platform", content: "windows"}}, 400, "Valid platform required (ios|android)"},
		"a platform like a path": {[]part{source("x"), {name: "platform", content: "../ios"}}, 400, "Valid platform required (ios|android)"},
		"a source too large":     {[]part{source(strings.Repeat("x", 101)), ios}, 413, "Source file is larger than 100 B"},
		"certs too large":        {[]part{source("x"), ios, {"certs", "c", strings.Repeat("x", 11)}}, 413, "Certs file is larger than 10 B"},
		"a field too large":      {[]part{source("x"), {name: "platform", content: strings.Repeat("i", 21)}}, 413, "Form field too large"},
		"two sources":            {[]part{source("x"), source("y"), ios}, 400, "More than one source file"},
		"two certs":              {[]part{{"certs", "c", "x"}, {"certs", "c", "x"}}, 400, "More than one certs file"},
		"too many parts":         {many, 400, "Too many parts"},
		"a priority too high":    {[]part{source("x"), ios, {name: "priority", content: "11"}}, 400, "Invalid request: priority must be a whole number from -10 to 10"},
		"a priority in words":    {[]part{source("x"), ios, {name: "priority", content: "high"}}, 400, "Invalid request: priority must be a whole number from -10 to 10"},
	}
	for name, tt := range tests {
		r := b.form("/api/builds/submit", key(), tt.parts...)
		require.Equal(t, tt.status, r.status, "%s: %s", name, r.body)
		require.Equal(t, tt.text, decode[api.Problem](t, r).Error, name)
		b.requireNothing()
	}
	for _, kind := range []string{"", "application/json", "multipart/form-data", "multipart/mixed; boundary=b", "text/plain", "multipart/form-data; boundary="} {
		r := b.send("POST", "/api/builds/submit", key("Content-Type", kind), "{}")
		require.Equal(t, 400, r.status)
		requireProblem(t, r, "Content must be multipart/form-data", "invalid_argument")
	}
	// The limits are inclusive.
	r := b.form("/api/builds/submit", key(), source(strings.Repeat("x", 100)), ios, part{"certs", "c", strings.Repeat("x", 10)})
	require.Equal(t, 200, r.status, r.body)
}

func TestSubmitThatBreaksOffLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	kind, whole := form(source(strings.Repeat("source ", 100)), part{name: "platform", content: "ios"})
	for _, n := range []int{0, 1, 30, 120, 500, len(whole) / 2, len(whole) - 60, len(whole) - 3} {
		r := b.send("POST", "/api/builds/submit", key("Content-Type", kind), string(whole[:n]))
		require.Equal(t, 400, r.status, "cut at %d: %s", n, r.body)
		b.requireNothing()
	}
	garbage := strings.ReplaceAll(string(whole), "Content-Disposition", "\x00\xff:")
	require.Equal(t, 400, b.send("POST", "/api/builds/submit", key("Content-Type", kind), garbage).status)
	b.requireNothing()
}

func TestSubmitIntoAFullQueueLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.submit()
	for range 20 { // one more than the limit fits
		b.submit()
	}
	r := b.form("/api/builds", key(), source("x"), part{name: "platform", content: "ios"}, part{"certs", "c", "x"})
	require.Equal(t, 503, r.status)
	requireProblem(t, r, "Build queue full, try again later", "queue_full")
	require.Equal(t, "5", r.header.Get("Retry-After"))
	require.Contains(t, r.body, `"details":"The queue's limit is 20, and 21 builds wait."`)
	require.Equal(t, 503, b.send("POST", "/api/builds/"+s.ID+"/retry", key(), "").status)
	require.Equal(t, 21, b.count())
	require.Len(t, b.files(), 21)
	require.Equal(t, []string{"Build submitted"}, b.messages(s.ID), "and no word of the retry")
}

// Three builds that nobody can take don't keep out those of an idle worker.
func TestBuildsThatNoWorkerCanTakeAreRefusedAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.register("idle")
	stuck := []part{source("x"), {name: "platform", content: "ios"}, {name: "require", content: "xcode=77"}}
	for range 2 {
		require.Equal(t, 201, b.form("/api/builds", key(), stuck...).status)
	}
	r := b.form("/api/builds/submit", key(), stuck...)
	require.Equal(t, 503, r.status)
	requireProblem(t, r, "Build queue full, try again later", "queue_full")
	require.Equal(t, "5", r.header.Get("Retry-After"))
	require.Contains(t, r.body, `"details":"No known worker can take this build. The limit of such builds is 2, and 2 wait. The limit of all others is 20, and 0 wait."`)
	require.Len(t, b.files(), 2)
	for range 21 {
		b.submit()
	}
	require.Equal(t, 503, b.form("/api/builds", key(), source("x"), part{name: "platform", content: "ios"}).status)
	require.Equal(t, 23, b.count())
}

func TestSubmitWithoutADatabaseLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Drop(io.ErrClosedPipe)
	r := b.form("/api/builds", key(), source("x"), part{name: "platform", content: "ios"})
	require.Equal(t, 503, r.status)
	require.Equal(t, "unavailable", decode[api.Problem](t, r).Code)
	require.NotEmpty(t, r.header.Get("Retry-After"))
	require.NotContains(t, r.body, "pipe")
	b.db.Use(b.pool)
	b.requireNothing()
}

func TestSubmitChecksADigest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	body := func(digest string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"source\"; filename=\"s\"\r\nContent-Digest: " + digest +
			"\r\n\r\nabc\r\n--b\r\nContent-Disposition: form-data; name=\"platform\"\r\n\r\nios\r\n--b--\r\n"
	}
	const kind = "multipart/form-data; boundary=b"
	for _, bad := range []string{"sha-256=:AAAA:", "sha-256=x", "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"} {
		r := b.send("POST", "/api/builds", key("Content-Type", kind), body(bad))
		require.Equal(t, 400, r.status, r.body)
		b.requireNothing()
	}
	for _, good := range []string{"sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:", "md5=:x:"} {
		require.Equal(t, 201, b.send("POST", "/api/builds", key("Content-Type", kind), body(good)).status)
	}
}

func TestClientThatLeavesMidUploadLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	kind, whole := form(source(strings.Repeat("source ", 100_000)), part{name: "platform", content: "ios"})
	body, w := io.Pipe()
	ended := begin(t, b.client, "POST", b.url+"/api/builds/submit", key("Content-Type", kind), body)
	_, err := w.Write(whole[:len(whole)/2])
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(b.files()) == 1 }, waitFor, tick, "it has begun")
	require.NoError(t, w.CloseWithError(io.ErrClosedPipe))
	require.Zero(t, (<-ended).status)
	require.Eventually(t, func() bool { return len(b.files()) == 0 }, waitFor, tick)
	require.Zero(t, b.count())
}

func TestFilesOfAnUncertainSubmitAreKept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		kept int
	}{
		"certain":   {store.NewError(store.Unavailable, "away"), 0},
		"uncertain": {store.Wrap(store.Unavailable, "away", store.ErrOutcomeUnknown), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupWith(t, func(d *takthttp.Deps) { d.Builds = failing{Builds: d.Builds, err: tt.err} })
			r := b.form("/api/builds", key(), source("x"), part{name: "platform", content: "ios"})
			require.Equal(t, 503, r.status)
			require.Len(t, b.files(), tt.kept)
		})
	}
}
