package http_test

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"takt/actors/notices"
	takthttp "takt/http"
	"takt/http/api"
	"takt/http/attention"
	"takt/http/dashboard"
	"takt/http/edge/edgetest"
	"takt/http/forecast"
	"takt/storage"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

// fixture is a server with the real store and the real storage behind it.
type fixture struct {
	t      *testing.T
	url    string
	server *takthttp.Server
	stop   func() error
	client *http.Client
	dir    string // of storage
	db     *postgres.DB
	pool   *pgxpool.Pool
	logs   *edgetest.Logs
	queue  *queue
	pacer  *pacer
	// deploying are the deployments, of which the test itself works on one, claim.
	deploying deploying
	claim     store.DeploymentClaim
	// published is what the server has told.
	published *published
}

const (
	waitFor = time.Minute
	tick    = 5 * time.Millisecond
)

func setup(t *testing.T, change ...func(*takthttp.Config)) *fixture {
	t.Helper()
	return setupWith(t, func(*takthttp.Deps) {}, change...)
}

// setupWith is setup with something else in the place of a dependency.
func setupWith(t *testing.T, replace func(*takthttp.Deps), change ...func(*takthttp.Config)) *fixture {
	t.Helper()
	return setupPages(t, func(s dashboard.Store) dashboard.Store { return s }, replace, change...)
}

// setupPages is setupWith with something else in the place of the pages' data.
func setupPages(
	t *testing.T, pages func(dashboard.Store) dashboard.Store, replace func(*takthttp.Deps), change ...func(*takthttp.Config),
) *fixture {
	t.Helper()
	d := storetest.New(t)
	b := &fixture{
		t: t, dir: t.TempDir(), db: d.DB, pool: d.Pool, client: newClient(t), published: &published{},
		queue: &queue{store: postgres.NewQueue(d.DB, postgres.QueueConfig{}), tokens: storetest.Tokens(t, d.DB), woken: make(chan struct{})},
	}
	local, err := storage.OpenLocal(b.dir, seal.NewRing(seal.Key{1}))
	require.NoError(t, err)
	files, err := storage.NewFiles(storage.ModeLocal, local, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, files.Close()) })
	b.pacer, b.deploying = newPacer(t, d.DB), newDeploying(d.DB)
	deps := takthttp.Deps{
		Builds:  postgres.NewBuilds(d.DB, postgres.BuildsConfig{QueueLimit: 20, Quarantine: store.QuarantineRule{Faults: 1, Attempts: 10}}),
		Workers: postgres.NewWorkers(d.DB), Queue: b.queue, Tokens: b.queue.tokens, Publish: b.published.publish, Files: files,
		Deployments: b.deploying, DeploymentStore: b.deploying, Throttle: b.pacer, ThrottleStore: b.pacer.Throttle, OAuth: installer{},
		Audit: postgres.NewAudit(d.DB), Background: func(run func(context.Context)) { go run(t.Context()) },
	}
	deps.Ring = &store.KeyRing{}
	kept := postgres.NewKeys(d.DB, deps.Ring)
	require.NoError(t, kept.Refresh(t.Context()))
	deps.Keys = kept
	deps.Notices = notices.New(postgres.NewNotices(d.DB), seal.NewRing(seal.Key{1}), nil, "")
	deps.Secrets = postgres.NewSecrets(d.DB, seal.NewRing(seal.Key{1}))
	deps.Forecast = forecast.NewReader(postgres.NewDashboard(d.DB))
	replace(&deps)
	shown := pages(postgres.NewDashboard(d.DB))
	deps.Attention = newAttention(deps, attended{postgres.NewDashboard(d.DB), shown})
	s, l := newServerWith(t, deps, shown, change...)
	b.logs = l
	b.server = s
	b.url, b.stop = serve(t, s, listen(t))
	return b
}

// attended is the store of what needs attention, with the fleet of the pages' store.
type attended struct {
	*postgres.Dashboard
	pages dashboard.Store
}

func (a attended) Fleet(ctx context.Context, f store.WorkerFilter, p store.Page) (rows []store.WorkerDetail, next store.Cursor, states map[string]int, err error) {
	return a.pages.Fleet(ctx, f, p)
}

// newAttention returns a reader of what needs attention.
func newAttention(deps takthttp.Deps, kept attention.Store) *attention.Reader {
	d := attention.Deps{
		Store: kept, Ready: deps.Ready, Tree: deps.Tree, Forecast: deps.Forecast, Files: deps.Files, Version: "test",
		Refused: func() int { return 0 }, Certificate: func() (never time.Time) { return never },
		Timeouts: func(context.Context) (store.Timeouts, error) { return store.Timeouts{}, nil },
	}
	if d.Ready == nil {
		d.Ready = func() bool { return kept != nil }
	}
	if d.Tree == nil {
		d.Tree = func(bool) api.TreeNode { return api.TreeNode{Path: "takt", Status: "running"} }
	}
	return attention.NewReader(d)
}

// storeBuilds are the builds of b's database.
func storeBuilds(b *fixture) *postgres.Builds {
	return postgres.NewBuilds(b.db, postgres.BuildsConfig{})
}

// part is one part of a form; with a file name if it is a file.
type part struct{ name, file, content string }

func form(parts ...part) (contentType string, body []byte) {
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for _, p := range parts {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", `form-data; name="`+p.name+`"`)
		if p.file != "" {
			h.Set("Content-Disposition", `form-data; name="`+p.name+`"; filename="`+p.file+`"`)
			h.Set("Content-Type", "application/gzip")
		}
		pw, _ := w.CreatePart(h) // a buffer takes everything
		_, _ = io.WriteString(pw, p.content)
	}
	_ = w.Close()
	return w.FormDataContentType(), buf.Bytes()
}

func key(more ...string) map[string]string {
	h := map[string]string{"X-API-Key": apiKey}
	for i := 0; i+1 < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

func (b *fixture) send(method, path string, header map[string]string, body string) reply {
	b.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	return send(b.t, b.client, method, b.url+path, header, r)
}

func (b *fixture) json(method, path string, header map[string]string, body string) reply {
	b.t.Helper()
	header["Content-Type"] = "application/json"
	return b.send(method, path, header, body)
}

func (b *fixture) form(path string, header map[string]string, parts ...part) reply {
	b.t.Helper()
	kind, body := form(parts...)
	header["Content-Type"] = kind
	return send(b.t, b.client, http.MethodPost, b.url+path, header, bytes.NewReader(body))
}

func source(content string) part { return part{"source", "project.tar.gz", content} }

// announce begins an upload that waits for leave to send its body, and reads the refusal.
func (b *fixture) announce(path string, headers ...string) edgetest.Reply {
	b.t.Helper()
	headers = append(headers, "Content-Type: multipart/form-data; boundary=b", "Expect: 100-continue", "Content-Length: 500000000")
	return edgetest.DialTCP(b.t, strings.TrimPrefix(b.url, "http://")).Ask(edgetest.Request("POST "+path, headers...))
}

// submit submits a build for iOS.
func (b *fixture) submit(more ...part) api.Submitted {
	b.t.Helper()
	r := b.form("/api/builds/submit", key(), append([]part{source("source code"), {name: "platform", content: "ios"}}, more...)...)
	require.Equal(b.t, 200, r.status, r.body)
	return decode[api.Submitted](b.t, r)
}

func (b *fixture) register(name string) api.Registered {
	b.t.Helper()
	r := b.json("POST", "/api/workers/register", key(), `{"name":"`+name+`","capabilities":{}}`)
	require.Equal(b.t, 200, r.status, r.body)
	return decode[api.Registered](b.t, r)
}

func (b *fixture) poll(token string) api.PollReply {
	b.t.Helper()
	r := b.send("GET", "/api/workers/poll", key("X-Worker-Token", token), "")
	require.Equal(b.t, 200, r.status, r.body)
	return decode[api.PollReply](b.t, r)
}

// assigned submits a build and hands it to a new worker.
func (b *fixture) assigned(more ...part) (api.Submitted, api.Registered) {
	b.t.Helper()
	build, worker := b.submit(more...), b.register("w")
	p := b.poll(worker.AccessToken)
	require.NotNil(b.t, p.Job)
	require.Equal(b.t, build.ID, p.Job.ID)
	worker.AccessToken = p.AccessToken
	return build, worker
}

func (b *fixture) status(id string) api.BuildStatus {
	b.t.Helper()
	r := b.send("GET", "/api/builds/"+id+"/status", key(), "")
	require.Equal(b.t, 200, r.status, r.body)
	return decode[api.BuildStatus](b.t, r)
}

// finish uploads a result, file last.
func (b *fixture) finish(build, worker, content string) reply {
	b.t.Helper()
	return b.form("/api/workers/upload", key(),
		part{name: "build_id", content: build}, part{name: "worker_id", content: worker},
		part{name: "success", content: "true"}, part{"result", "app.ipa", content})
}

// messages returns a build's log.
func (b *fixture) messages(id string) []string {
	b.t.Helper()
	r := b.send("GET", "/api/builds/"+id+"/logs", key(), "")
	require.Equal(b.t, 200, r.status, r.body)
	var m []string
	for _, l := range decode[api.Logs](b.t, r).Logs {
		m = append(m, l.Message)
	}
	return m
}

// files lists what is in storage, temporary files included.
func (b *fixture) files() []string {
	b.t.Helper()
	names := []string{}
	err := filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) { // a temporary file that just went
			return nil
		}
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(b.dir, path)
			names = append(names, name)
		}
		return err
	})
	require.NoError(b.t, err)
	return names
}

// count counts the rows of builds.
func (b *fixture) count() int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), `SELECT count(*) FROM builds`).Scan(&n))
	return n
}

// requireNothing checks that no file and no build is left behind.
func (b *fixture) requireNothing() {
	b.t.Helper()
	require.Empty(b.t, b.files())
	require.Zero(b.t, b.count())
}

// temporaries lists the files that have no place yet.
func (b *fixture) temporaries() []string {
	b.t.Helper()
	var names []string
	for _, n := range b.files() {
		if strings.HasPrefix(n, "tmp/") {
			names = append(names, n)
		}
	}
	return names
}

// storeBuild makes a build past the server and returns its id.
func storeBuild(b *fixture) string {
	b.t.Helper()
	return storetest.Build(b.t, b.db).ID
}

// remove removes something from storage behind the server's back.
func (b *fixture) remove(name string) {
	b.t.Helper()
	require.NoError(b.t, os.RemoveAll(filepath.Join(b.dir, name)))
}
