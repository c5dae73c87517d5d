package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/buildtest"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/process"
	"takt/cmd/internal/settings"
	"takt/http/api"
	"takt/http/client"
	"takt/http/tlstest"
	"takt/storage/s3test"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
	"takt/store/storetest/needs"
)

// newSite returns a directory for a controller.
func newSite(t *testing.T) process.Site {
	t.Helper()
	dir, err := os.MkdirTemp("", "site-") // paths of sockets are short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return process.Site{Takt: buildtest.Build(t), Dir: dir, Environ: os.Environ()}
}

func controller(t *testing.T, s process.Site, settings ...string) *process.Controller {
	t.Helper()
	c, err := s.Controller(t.Context(), "takt", settings...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop(context.WithoutCancel(t.Context()), time.Minute)) })
	return c
}

// diagnosed returns what a doctor tells.
func diagnosed(t *testing.T, look func(d *doctor)) []diagnosis {
	t.Helper()
	var out bytes.Buffer
	d := doctor{Output: cli.Output{Out: &out, JSON: true}, poll: 2 * time.Second}
	look(&d)
	all := diagnoses(t, out.String())
	require.Len(t, slices.DeleteFunc(slices.Clone(all), func(g diagnosis) bool { return g.Result == resultOK }), d.failed+d.doubtful)
	return all
}

func diagnoses(t *testing.T, text string) (all []diagnosis) {
	t.Helper()
	for line := range strings.Lines(text) {
		var g diagnosis
		require.NoError(t, json.Unmarshal([]byte(line), &g), text)
		if g.Check == "" { // the error at the end
			continue
		}
		require.Equal(t, g.Result == resultOK, g.Mend == "", "what is found can be mended: %s", line)
		all = append(all, g)
	}
	return all
}

// requireFound checks that exactly one finding has this text.
func requireFound(t *testing.T, all []diagnosis, check, found string) {
	t.Helper()
	n := 0
	for _, g := range all {
		if g.Result != resultOK && g.Check == check && strings.Contains(g.Found, found) {
			n++
		}
	}
	require.Equal(t, 1, n, "%s: %q in %v", check, found, all)
}

func requireWell(t *testing.T, all []diagnosis, check string) {
	t.Helper()
	require.True(t, slices.ContainsFunc(all, func(g diagnosis) bool { return g.Check == check && g.Result == resultOK }), "%s: %v", check, all)
	require.False(t, slices.ContainsFunc(all, func(g diagnosis) bool { return g.Check == check && g.Result != resultOK }), "%s: %v", check, all)
}

func TestDoctorLooksAtSettings(t *testing.T) {
	t.Parallel()
	_, err := settings.Load(settings.Sources{Lookup: func(name string) (string, bool) {
		value, ok := map[string]string{"TAKT_QUEUE_LIMIT": "0", "TAKT_API_KEY": "short"}[name]
		return value, ok
	}, Names: []string{"TAKT_QUEU_LIMIT"}})
	all := diagnosed(t, func(d *doctor) { d.settings(err) })
	require.Len(t, all, 3)
	requireFound(t, all, "settings", "queue-limit: must be at least 1")
	requireFound(t, all, "settings", "api-key: needs")
	requireFound(t, all, "settings", "TAKT_QUEU_LIMIT")
	requireWell(t, diagnosed(t, func(d *doctor) { d.settings(nil) }), "settings")
}

func TestDoctorLooksAtTheDataDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	look := func() []diagnosis {
		return diagnosed(t, func(d *doctor) { require.False(t, d.dataDir(settings.Config{DataDir: dir})) })
	}
	requireWell(t, look(), "data directory")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "api-key"), []byte("k"), 0o600))
	require.NoError(t, os.Chmod(filepath.Join(dir, "api-key"), 0o644))
	requireFound(t, look(), "data directory", "can be read by others")
	require.NoError(t, os.Chmod(dir, 0o777))
	requireFound(t, look(), "data directory", "everybody may write")
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "postgres"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "postgres", "PG_VERSION"), []byte("9\n"), 0o600))
	requireFound(t, look(), "keys", "no encryption-key")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	all := diagnosed(t, func(d *doctor) { d.dataDir(settings.Config{DataDir: filepath.Join(dir, "file")}) })
	requireFound(t, all, "data directory", "not a directory")

	needs.Postgres(t)
	all = diagnosed(t, func(d *doctor) { d.database(t.Context(), settings.Config{DataDir: dir}, nil, false) })
	requireFound(t, all, "database", "was made by PostgreSQL 9")
	all = diagnosed(t, func(d *doctor) { d.database(t.Context(), settings.Config{DataDir: t.TempDir()}, nil, false) })
	requireWell(t, all, "database")
}

func TestDoctorLooksAtTheDisk(t *testing.T) {
	t.Parallel()
	needs.Linux(t)
	all := diagnosed(t, func(d *doctor) { d.disk("/dev/shm/not/there/yet") })
	requireFound(t, all, "disk", "/dev/shm is in memory")
	requireFound(t, diagnosed(t, func(d *doctor) { d.space(99<<20, 100<<20, nil) }), "disk", "99 MB are free; submits are refused below 100 MB")
	requireWell(t, diagnosed(t, func(d *doctor) { d.space(100<<20, 100<<20, nil) }), "disk")
	requireFound(t, diagnosed(t, func(d *doctor) { d.disk("/proc/self") }), "fsync", "/proc/self")

	took, err := syncTime(t.TempDir(), (*os.File).Sync)
	require.NoError(t, err)
	require.Positive(t, took)
	synctest.Test(t, func(t *testing.T) { // the clock of a slow disk
		took, err = syncTime(t.TempDir(), func(*os.File) error {
			<-time.After(30 * time.Millisecond)
			return nil
		})
	})
	requireFound(t, diagnosed(t, func(d *doctor) { d.fsync(took, err) }), "fsync", "one takes 30ms")
}

func TestDoctorLooksAtAddressAndLimits(t *testing.T) {
	t.Parallel()
	needs.Files(t, 4096)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	taken := settings.Config{Listen: ln.Addr().String()}
	requireFound(t, diagnosed(t, func(d *doctor) { d.address(t.Context(), taken, false) }), "address", "address already in use")
	requireWell(t, diagnosed(t, func(d *doctor) { d.address(t.Context(), taken, true) }), "address")
	open := settings.Config{Listen: "0.0.0.0:0"}
	requireFound(t, diagnosed(t, func(d *doctor) { d.address(t.Context(), open, false) }), "address", "travel in clear")
	open.PublicURL = "https://takt.example.org"
	requireWell(t, diagnosed(t, func(d *doctor) { d.address(t.Context(), open, false) }), "address")
	requireFound(t, diagnosed(t, func(d *doctor) { d.limits(settings.Config{MaxParked: 1 << 40}) }), "limits", "open files allow")
	requireWell(t, diagnosed(t, func(d *doctor) { d.limits(settings.Config{MaxParked: 10}) }), "limits")
	requireFound(t, diagnosed(t, func(d *doctor) { d.timekeeping(false, true) }), "clock (NTP)", "nothing keeps")
	requireWell(t, diagnosed(t, func(d *doctor) { d.timekeeping(true, true) }), "clock (NTP)")
}

func TestDoctorLooksAtTheCertificate(t *testing.T) {
	t.Parallel()
	cert, key := tlstest.NewAuthority(t).Issue(t, t.TempDir(), 1)
	look := func(cfg settings.Config) []diagnosis { return diagnosed(t, func(d *doctor) { d.certificate(cfg) }) }
	require.NoError(t, os.Chmod(key, 0o640))
	all := look(settings.Config{TLSCert: cert, TLSKey: key})
	requireFound(t, all, "certificate", "valid until")
	requireFound(t, all, "certificate", "can be read by others")
	requireFound(t, look(settings.Config{TLSCert: cert, TLSKey: cert}), "certificate", "TLS certificate")
	require.Empty(t, look(settings.Config{}))
}

func TestDoctorLooksAtTheDatabase(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	url := func(user, password string) string {
		return fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=disable", db.Config.Host, db.Config.Port, user, password, db.Config.Database)
	}
	look := func(cfg settings.Config, keys *seal.Ring) []diagnosis {
		return diagnosed(t, func(d *doctor) { d.database(t.Context(), cfg, keys, false) })
	}
	cfg := settings.Config{DatabaseURL: url(db.Config.User, db.Config.Password), DatabasePool: 10}
	all := look(cfg, nil)
	requireFound(t, all, "database", "fsync is off") // as that of the tests is
	requireWell(t, all, "clock")
	cfg.DatabasePool = 100_000
	requireFound(t, look(cfg, nil), "database", "--db-pool wants 100000")

	mine, other := seal.NewRing(seal.Key{1}), seal.NewRing(seal.Key{2})
	require.NoError(t, postgres.WithKeyCheck(mine)(t.Context(), db.Config))
	requireFound(t, look(cfg, other), "keys", "was sealed with the encryption key")
	require.False(t, slices.ContainsFunc(look(cfg, mine), func(g diagnosis) bool { return g.Check == "keys" }))

	role := "doctor_" + strings.ToLower(db.Config.Database)
	_, err := db.Pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD 'doctor'; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+role)
		require.NoError(t, err)
	})
	requireFound(t, look(settings.Config{DatabaseURL: url(role, "doctor"), DatabasePool: 10}, nil), "database", "may not make tables")
	for _, bad := range []string{url("nobody-at-all", "x"), "postgres://127.0.0.1:1/takt", "postgres://%zz"} {
		all := look(settings.Config{DatabaseURL: bad}, nil)
		require.Len(t, all, 1)
		require.Equal(t, resultFailed, all[0].Result)
		require.Equal(t, "database", all[0].Check)
	}

	all = diagnosed(t, func(d *doctor) {
		d.inspected(settings.Config{DatabasePool: 10}, postgres.Inspection{
			Version: 13_00_11, Standby: true, Encoding: "SQL_ASCII", MayCreate: true, Connections: 97, Ahead: -time.Minute,
		})
	})
	requireFound(t, all, "database", "PostgreSQL 13 is too old")
	requireFound(t, all, "database", "standby")
	requireFound(t, all, "database", "SQL_ASCII")
	requireFound(t, all, "clock", "-1m0s ahead")
	all = diagnosed(t, func(d *doctor) {
		d.inspected(settings.Config{DatabasePool: 10}, postgres.Inspection{Version: 17_00_02, Encoding: "UTF8", MayCreate: true, Connections: 97})
	})
	requireWell(t, all, "database")
}

func TestDoctorTriesTheBucket(t *testing.T) {
	t.Parallel()
	bucket := s3test.Start(t)
	cfg := settings.Default(t.TempDir())
	cfg.Storage = "dual"
	cfg.S3.Endpoint, cfg.S3.Bucket, cfg.S3.AccessKey, cfg.S3.SecretKey = bucket.Endpoint, s3test.Bucket, s3test.AccessKey, s3test.SecretKey
	cfg.S3.Prefix = "below"
	look := func() []diagnosis { return diagnosed(t, func(d *doctor) { d.bucket(t.Context(), cfg) }) }
	requireWell(t, look(), "S3")
	require.Empty(t, bucket.Objects(), "nothing is left behind")
	// Nobody may store below a directory that is read only.
	require.NoError(t, os.WriteFile(filepath.Join(bucket.Dir, "file"), nil, 0o600))
	cfg.S3.Prefix = "file"
	requireFound(t, look(), "S3", "storing an object")
	cfg.S3.Bucket = "another"
	requireFound(t, look(), "S3", "does not exist")
	cfg.S3.SecretKey = "wrong"
	requireFound(t, look(), "S3", "asking for the bucket")
	cfg.Storage, cfg.S3.Endpoint = "local", ""
	require.Empty(t, look())
}

func TestDoctorLooksAtAController(t *testing.T) {
	t.Parallel()
	c := controllertest.Start(t)
	look := func(key string) []diagnosis {
		cl, err := client.New(client.Config{BaseURL: c.URL, APIKey: key, AdminKey: controllertest.AdminKey, HTTPClient: &http.Client{Transport: client.NewTransport()}})
		require.NoError(t, err)
		defer cl.CloseIdle()
		return diagnosed(t, func(d *doctor) { d.controller(t.Context(), cl, true) })
	}
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/livez":
			w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		case "/health":
			controllertest.JSON(w, 200, api.Health{Storage: map[string]any{"ok": false}, Database: api.DatabaseHealth{VacuumHeldBackSeconds: 90}})
		case "/api/attention":
			if r.Header.Get("X-API-Key") != controllertest.APIKey {
				return false
			}
			controllertest.JSON(w, 200, api.Attention{Problems: []api.NeedsAttention{
				{Kind: "suspect", Severity: "bad", Text: "mini-02 is suspect.", Todo: "Drain it.", Command: "takt workers drain w --reason"},
				{Kind: "waiting", Severity: "warn", Text: "3 builds are waiting.", Todo: "Look."},
				{Kind: "offline", Severity: "bad", Text: "mini-03 is offline.", Acknowledged: &api.Acknowledged{By: "ana", Reason: "new disk"}},
			}})
		default:
			return false
		}
		return true
	})
	all := look("wrong")
	requireFound(t, all, "clock", "ahead of this machine")
	requireFound(t, all, "controller", "vacuum")
	requireFound(t, all, "controller", "storage check failed")
	requireFound(t, all, "keys", "the API key")
	all = look(controllertest.APIKey)
	requireFound(t, all, "suspect", "mini-02 is suspect.")
	require.Contains(t, all, diagnosis{"suspect", resultFailed, "mini-02 is suspect.", "Drain it. (takt workers drain w --reason)"})
	require.Contains(t, all, diagnosis{"waiting", resultWarning, "3 builds are waiting.", "Look."})
	requireWell(t, all, "offline") // somebody knows
	c.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/livez":
			return true
		case "/health":
			controllertest.JSON(w, 200, api.Health{Storage: map[string]any{"ok": true}, State: "degraded", Reasons: []store.Code{store.QueueFull}})
			return true
		case "/api/attention":
			controllertest.JSON(w, 200, api.Attention{Problems: []api.NeedsAttention{}})
			return true
		case "/admin/tree":
			controllertest.Problem(w, http.StatusForbidden, store.Forbidden, "Invalid admin key")
			return true
		default:
			return false
		}
	})
	all = look(controllertest.APIKey)
	requireFound(t, all, "controller", "refuses builds: queue_full")
	requireWell(t, all, "attention")
	requireFound(t, all, "keys", "the admin key")
	requireFound(t, all, "streams", "does not begin") // this one has no events
	requireWell(t, all, "long polls")
	c.URL = "http://127.0.0.1:1"
	requireFound(t, look(""), "controller", "http://127.0.0.1:1")
}

// proxyTo starts a proxy in front of a controller and returns its URL.
func proxyTo(t *testing.T, target string, edit func(p *httputil.ReverseProxy)) string {
	t.Helper()
	to, err := url.Parse(target)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	transport := &http.Transport{}
	proxy.Transport = transport
	edit(proxy)
	server := httptest.NewServer(proxy)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
	})
	return server.URL
}

// hoarder is a body that gives nothing away before all of it is there.
type hoarder struct {
	io.ReadCloser
	all *bytes.Reader
}

func (h *hoarder) Read(p []byte) (int, error) {
	if h.all == nil {
		raw, err := io.ReadAll(h.ReadCloser)
		if err != nil {
			return 0, err
		}
		h.all = bytes.NewReader(raw)
	}
	return h.all.Read(p)
}

// impatient cuts off every reply that takes longer than a second.
type impatient struct{ http.RoundTripper }

func (i impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	resp, err := i.RoundTripper.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &cutting{resp.Body, cancel}
	return resp, nil
}

type cutting struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c *cutting) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
}

func TestDoctorFindsWhatProxiesDo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := controller(t, s, "TAKT_LISTEN=127.0.0.1:0")
	look := func(url string) ([]diagnosis, int) {
		p, err := s.Launch("doctor", []string{"TAKT_API_KEY=" + c.APIKey, "TAKT_ADMIN_KEY=" + c.AdminKey},
			"doctor", "--json", "--url", url, "--poll-wait", "2s")
		require.NoError(t, err)
		<-p.Done()
		text, _, _ := strings.Cut(p.Output(), "takt: ") // what follows is the error
		return diagnoses(t, text), p.ExitCode()
	}
	workers := func() []api.Worker {
		list, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
		require.NoError(t, err)
		return list.Workers
	}
	all, code := look(proxyTo(t, c.URL, func(p *httputil.ReverseProxy) { p.FlushInterval = -1 }))
	require.Zero(t, code, "%v", all)
	for _, check := range []string{"clock", "controller", "attention", "keys", "streams", "long polls"} {
		requireWell(t, all, check)
	}
	all, code = look(proxyTo(t, c.URL, func(p *httputil.ReverseProxy) {
		p.ModifyResponse = func(r *http.Response) error {
			r.Body = &hoarder{ReadCloser: r.Body}
			return nil
		}
	}))
	require.Equal(t, 1, code)
	requireFound(t, all, "streams", "did not arrive")
	requireWell(t, all, "long polls")
	all, code = look(proxyTo(t, c.URL, func(p *httputil.ReverseProxy) { p.Transport, p.FlushInterval = impatient{p.Transport}, -1 }))
	require.Equal(t, 1, code)
	requireFound(t, all, "streams", "was cut")
	requireFound(t, all, "long polls", "was cut off after 1")
	require.Empty(t, workers(), "the doctor's own are deleted")
}
