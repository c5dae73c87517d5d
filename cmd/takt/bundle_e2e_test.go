package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/process"
	"takt/http/client"
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

// requireNotInBundle has takt debug bundle write all that it knows of a controller.
func (s secrets) requireNotInBundle(t *testing.T, c *process.Controller, file string) {
	t.Helper()
	_, err := c.Client.Operate(t.Context(), client.Order{Action: "restart", Path: "orchestration/janitor", Reason: "for the bundle"})
	require.NoError(t, err)
	var out bytes.Buffer
	root := command.New(cli.Environment(env("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey, "TAKT_ADMIN_KEY", c.AdminKey)))
	require.Zero(t, cli.Execute(t.Context(), root, []string{"debug", "bundle", "-o", file, "--record", "1s"}, &out, &out), out.String())
	files := unpacked(t, file)
	require.NotContains(t, files, "errors.txt")
	for name, part := range map[string]string{
		"tree.json": `"takt/database/pool"`, "metrics.txt": "takt_queue_pending_builds", "build.json": `"github.com/labstack/echo/v4"`,
		"settings.json": `"s3_secret_key": "********"`, "log.jsonl": `"message"`, "database.json": `"relname": "builds"`,
		"goroutines.txt": "goroutine 1 [", "heap.pprof": "inuse_space", "cpu.pprof": "nanoseconds", "supervision.jsonl": `"path":"takt/database/pool"`,
	} {
		require.Contains(t, files[name], part, name)
	}
	for name, content := range files {
		s.requireAbsent(t, name, content)
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
	d.fails(t, 1, "file exists", "debug", "bundle", "-o", file)
	require.Equal(t, files, unpacked(t, file))

	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		controllertest.Problem(w, http.StatusForbidden, store.Forbidden, "Invalid admin key")
		return true
	})
	d.fails(t, 4, "Invalid admin key", "debug", "bundle", "-o", file+"2")
	require.NoFileExists(t, file+"2")
}
