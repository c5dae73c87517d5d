package http_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// enroll registers a worker with capabilities.
func (b *fixture) enroll(capabilities string) api.Registered {
	b.t.Helper()
	r := b.json("POST", "/api/workers/register", key(), `{"name":"w","capabilities":`+capabilities+`}`)
	require.Equal(b.t, 200, r.status, r.body)
	return decode[api.Registered](b.t, r)
}

func TestBuildsSayWhatTheyNeedOfAWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.submit(part{name: "require", content: " xcode >= 16, !gpu"}, part{name: "prefer", content: "pool in (b,a)"})
	status := b.status(s.ID)
	require.Equal(t, []string{"!gpu,xcode>=16", "pool in (a,b)"}, []string{status.Require, status.Prefer})
	why := func() api.BuildWhy {
		why := decode[api.BuildWhy](t, b.send("GET", "/api/builds/"+s.ID+"/why", key(), ""))
		why.WaitingSince = nil
		return why
	}
	require.Equal(t, api.BuildWhy{ID: s.ID, State: "pending", Number: 1, Reason: "There is no worker for ios with !gpu,xcode>=16.", Unmatched: true, Nearest: []string{}}, why())

	require.Nil(t, b.poll(b.enroll(`{}`).AccessToken).Job)
	require.Nil(t, b.poll(b.enroll(`{"labels":{"xcode":"15"}}`).AccessToken).Job)
	mac := b.enroll(`{"labels":{"xcode":"16.2","pool":"a"}}`)
	require.Equal(t, map[string]string{"xcode": "16.2", "pool": "a"}, b.worker(mac.ID).Labels)
	p := b.poll(mac.AccessToken)
	require.Equal(t, s.ID, p.Job.ID)
	require.Equal(t, 200, b.finish(s.ID, mac.ID, "app").status)

	again := decode[api.Retried](t, b.send("POST", "/api/builds/"+s.ID+"/retry", key(), ""))
	status = b.status(again.ID)
	require.Equal(t, []string{"!gpu,xcode>=16", "pool in (a,b)"}, []string{status.Require, status.Prefer}, "a retry needs the same")

	for _, field := range []string{"require", "prefer"} {
		r := b.form("/api/builds", key(), source("x"), part{name: "platform", content: "ios"}, part{name: field, content: "xcode=>16"})
		require.Equal(t, 400, r.status)
		require.Contains(t, r.body, field+": ")
	}
	r := b.json("POST", "/api/workers/register", key(), `{"name":"w","capabilities":{"labels":["a"]}}`)
	require.Equal(t, 422, r.status)
	require.Contains(t, r.body, "labels must be an object of at most 32 texts and 1024 bytes")
}

// What was read of queue and fleet for an earlier build is not used for a class that came later.
func TestWhyABuildThatNoWorkerCanTakeWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for need, reason := range map[string]string{"": "There is no worker for ios.", "gpu": "There is no worker for ios with gpu.", "!gpu": "There is no worker for ios with !gpu."} {
		s := b.submit(part{name: "require", content: need})
		require.Equal(t, reason, decode[api.BuildWhy](t, b.send("GET", "/api/builds/"+s.ID+"/why", key(), "")).Reason)
	}
}

func TestRequirementsAreAPartOfWhatIsSubmittedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ios, gpu := part{name: "platform", content: "ios"}, part{name: "require", content: "gpu"}
	first := b.under("k", "/api/builds", source("x"), ios, gpu)
	require.Equal(t, 201, first.status, first.body)
	require.Equal(t, first.body, b.under("k", "/api/builds", source("x"), ios, part{name: "require", content: " gpu,gpu"}).body)
	require.Equal(t, 422, b.under("k", "/api/builds", source("x"), ios).status)
}

// The platforms are a setting. A worker that names none does not take the others, and
// what they make is called as it was uploaded.
func TestPlatformsAreASetting(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.Platforms = []store.Platform{store.IOS, "linux"} })
	r := b.form("/api/builds", key(), source("x"), part{name: "platform", content: "android"})
	require.Equal(t, 400, r.status)
	require.Contains(t, r.body, "Valid platform required (ios|linux)")
	for name, ext := range map[string]string{"app.tar.gz": ".gz", "app": ".bin", "tool.AppImage": ".appimage", "../../x.sh/": ".sh", "x.a-b": ".bin"} {
		r = b.form("/api/builds", key(), source("x"), part{name: "platform", content: "linux"})
		require.Equal(t, 201, r.status, r.body)
		s := decode[api.Submitted](t, r)
		require.Nil(t, b.poll(b.register("any").AccessToken).Job)
		w := b.enroll(`{"platforms":["linux"]}`)
		require.Equal(t, "linux", b.poll(w.AccessToken).Job.Platform)
		id, who, ok := uploadParts(s.ID, w.ID, "true")
		require.Equal(t, 200, b.form("/api/workers/upload", key(), id, who, ok, part{"result", name, "the tool"}).status)
		require.Contains(t, b.files(), "builds/"+s.ID+"/result"+ext)
		got := b.send("GET", "/api/builds/"+s.ID+"/download", key(), "")
		require.Equal(t, "the tool", got.body)
		require.Contains(t, got.header.Get("Content-Disposition"), s.ID+ext)
	}
}

func TestDashboardShowsLabelsAndRequirements(t *testing.T) {
	t.Parallel()
	d := setupDash(t, adminKey)
	s := d.submit(part{name: "require", content: "xcode>=16"}, part{name: "prefer", content: "pool=fast"})
	mac := d.enroll(`{"labels":{"xcode":"15.4","pool":"fast"}}`)
	d.enroll(`{"platforms":["linux"],"labels":{"xcode":"15.4"}}`)
	d.enroll(`{"labels":{"xcode":"15.4"}}`)
	d.enroll(`{}`)
	queue := d.get("/queue").body
	require.Contains(t, queue, "<b>ios with <code>xcode&gt;=16</code>:</b>")
	require.Contains(t, queue, "There is no worker for ios with xcode&gt;=16.")
	require.Contains(t, queue, `id="unmatched">No known worker can take 1 build in the queue. Start a worker that has what is required, or cancel it.`)
	require.NotContains(t, queue, `id="refused"`)
	build := d.get("/builds/" + s.ID).body
	require.Contains(t, build, "<code>xcode&gt;=16</code>")
	require.Contains(t, build, "<code>pool=fast</code>")
	require.Contains(t, build, `class="note why unmatched"`)
	why := decode[api.BuildWhy](t, d.send("GET", "/api/builds/"+s.ID+"/why", key(), ""))
	require.True(t, why.Unmatched)
	require.Equal(t, []string{"w lacks xcode>=16", "w and 1 other lack xcode>=16 (it has xcode=15.4)", "w lacks platform ios, xcode>=16 (it has xcode=15.4)"}, why.Nearest)
	ci := shownKey(d.named("ci", store.ScopeSubmit).Key)
	own := d.form("/api/builds", ci.headers(), source("x"), part{name: "platform", content: "ios"}, part{name: "require", content: "xcode>=16"})
	require.Equal(t, 201, own.status, own.body)
	theirs := decode[api.Submitted](t, own)
	counts := []string{"3 workers lack xcode>=16", "1 worker lacks platform ios, xcode>=16"}
	for header, want := range map[string][]string{"X-API-Key " + string(ci): counts, "X-Build-Token " + theirs.AccessToken: counts, "X-API-Key " + d.named("reader", store.ScopeRead).Key: why.Nearest} {
		name, value, _ := strings.Cut(header, " ")
		require.Equal(t, want, decode[api.BuildWhy](t, d.send("GET", "/api/builds/"+theirs.ID+"/why", map[string]string{name: value}, "")).Nearest, "names and labels of workers need the scope read")
	}
	require.Contains(t, d.get("/builds/"+s.ID).body, "<br>w lacks xcode&gt;=16<br>w and 1 other lack xcode&gt;=16 (it has xcode=15.4)<br>w lacks platform ios")
	for _, page := range []string{"/fleet", "/fleet/" + mac.ID} {
		require.Contains(t, d.get(page).body, "xcode=15.4", page)
	}
	require.Contains(t, d.get("/overview").body, "There is no worker for ios with xcode&gt;=16.")
}
