package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/storage/s3test"
	"takt/store"
)

// unpacked returns the files of a bundle by name, and those of profiles without their
// compression, so that text in them can be found.
func unpacked(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	zr, err := gzip.NewReader(f)
	require.NoError(t, err)
	files := map[string]string{}
	for tr := tar.NewReader(zr); ; {
		head, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		raw, err := io.ReadAll(tr)
		require.NoError(t, err)
		if inner, err := gzip.NewReader(bytes.NewReader(raw)); err == nil {
			raw, err = io.ReadAll(inner)
			require.NoError(t, err)
		}
		files[path.Base(head.Name)] = string(raw)
	}
}

func TestABundleHoldsNoSecret(t *testing.T) {
	t.Parallel()
	s, bucket := newSite(t), s3test.Start(t)
	hidden := secrets{
		"TAKT_API_KEY": "api-key-of-the-bundle-test-1", "TAKT_ADMIN_KEY": "admin-key-of-the-bundle-test-2",
		"TAKT_OLD_ENCRYPTION_KEYS":   "YW4gb2xkIGtleSBvZiBleGFjdGx5IDMyIGJ5dGVzIC4=",
		"TAKT_HUBSPOT_CLIENT_SECRET": "hubspot-secret-of-the-bundle-test-3", "TAKT_GITHUB_TOKEN": "ghp_token-of-the-bundle-test-4",
	}
	settings := append(bucket.Env(), "TAKT_LOG=debug,json", "TAKT_STORAGE=dual", "TAKT_HUBSPOT_CLIENT_ID=7",
		"TAKT_HUBSPOT_API_URL=http://somebody:password-in-a-url-5@127.0.0.1:1", "TAKT_PUBLIC_URL=http://somebody:password-in-a-url-5@127.0.0.1:1")
	for name, value := range hidden {
		settings = append(settings, name+"="+value)
	}
	// The second gets the password of the first one's database in a URL.
	first := s.controller("first", settings...)
	c := s.controller("second", append(settings, first.Shared()...)...)
	db := talkative(t, first)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	build := submitAsBefore(t, c)
	h := register(t, c, 1)
	h.poll(t)
	misuse(t, c, build, h.token)
	maps.Copy(hidden, secrets{
		"a URL's password": "password-in-a-url-5", "the bucket's secret": s3test.SecretKey, "a worker's token": h.token, "the build's token": build.AccessToken,
		"the encryption key":     process.ReadWord(filepath.Join(first.DataDir, "encryption-key")),
		"the database password":  process.ReadWord(filepath.Join(first.DataDir, "postgres.password")),
		"the account's password": applePassword, "the certificate's password": certPassword, "the certificate": signingIdentity,
		"a wrong key": wrongKey, "a wrong token": wrongToken, "a broken body": unreadableSecret,
	})
	_, err := c.Client.Operate(t.Context(), client.Order{Action: "restart", Path: "orchestration/janitor", Reason: "for the bundle"})
	require.NoError(t, err)

	for name, from := range map[string]*process.Controller{"first": first, "second": c} {
		file := filepath.Join(s.Dir, name+".tar.gz")
		var out bytes.Buffer
		root := newRootIn(environment(env("TAKT_URL", from.URL, "TAKT_API_KEY", from.APIKey, "TAKT_ADMIN_KEY", from.AdminKey)))
		require.Zero(t, cli.Execute(t.Context(), root, []string{"debug", "bundle", "-o", file, "--record", "1s"}, &out, &out), out.String())
		files := unpacked(t, file)
		require.NotContains(t, files, "errors.txt")
		parts := map[string]string{
			"tree.json": `"takt/database/pool"`, "metrics.txt": "takt_queue_pending_builds", "build.json": `"github.com/labstack/echo/v4"`,
			"settings.json": `"s3_secret_key": "********"`, "log.jsonl": `"route":"/api/builds/submit"`, "database.json": `"relname": "builds"`,
			"goroutines.txt": "goroutine 1 [", "heap.pprof": "inuse_space", "cpu.pprof": "nanoseconds",
			"supervision.jsonl": `"path":"takt/database/pool"`,
		}
		if from == first {
			parts["log.jsonl"] = "SELECT" // its server's statements
		}
		for name, part := range parts {
			require.Contains(t, files[name], part, name)
		}
		for name, content := range files {
			hidden.requireAbsent(t, name, content)
		}
	}
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
	files := unpacked(t, file)
	require.Equal(t, "takt_ready 0\n", files["metrics.txt"])
	for _, fault := range []string{"database.json: no answer\n", "tree.json: not now\n", "cpu.pprof: not now\n"} {
		require.Contains(t, files["errors.txt"], fault)
	}
	code, _, errs := d.takt(t.Context(), "debug", "bundle", "-o", file)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "file exists")
	require.Equal(t, files, unpacked(t, file))

	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		controllertest.Problem(w, http.StatusForbidden, store.Forbidden, "Invalid admin key")
		return true
	})
	code, _, _ = d.takt(t.Context(), "debug", "bundle", "-o", file+"2")
	require.Equal(t, 4, code)
	require.NoFileExists(t, file+"2")
}

func TestTheRecentLogIsBounded(t *testing.T) {
	t.Parallel()
	r := new(recentLog)
	for i := range recentLines + 2 {
		_, err := r.Write([]byte(strings.Repeat("x", i)))
		require.NoError(t, err)
	}
	_, err := r.Write(bytes.Repeat([]byte("y"), 2*recentBytes))
	require.NoError(t, err)
	lines := r.all()
	require.Len(t, lines, recentLines)
	require.Len(t, lines[0], 3)
	require.Equal(t, strings.Repeat("y", recentBytes), lines[recentLines-1])
}
