package takttest

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// Zip makes an archive of these names and contents.
func Zip(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := zip.NewWriter(&out)
	for name, content := range files {
		w, err := zw.Create(name)
		require.NoError(t, err)
		_, err = io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, zw.Close())
	return out.Bytes()
}

// unzip returns names and contents of an archive.
func unzip(t *testing.T, path string) string {
	t.Helper()
	zr, err := zip.OpenReader(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, zr.Close()) }()
	var out strings.Builder
	for _, f := range zr.File {
		r, err := f.Open()
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		fmt.Fprintf(&out, "%s: %s\n", f.Name, content)
	}
	return out.String()
}

// Submit submits an android build and returns its id.
func Submit(t *testing.T, c *process.Controller, source []byte) string {
	t.Helper()
	sub, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.Android, Source: client.Bytes(source)})
	require.NoError(t, err)
	return sub.ID
}

// Cancel cancels a build.
func Cancel(t *testing.T, c *process.Controller, id string) {
	t.Helper()
	_, err := c.Client.Cancel(t.Context(), id, "")
	require.NoError(t, err)
}

// Status returns the status of a build.
func Status(t *testing.T, c *process.Controller, id string) api.BuildStatus {
	t.Helper()
	st, err := c.Client.Status(t.Context(), id, client.BuildAuth{})
	require.NoError(t, err)
	return st
}

// Download returns the result of a build.
func Download(t *testing.T, c *process.Controller, id string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "result"))
	require.NoError(t, err)
	defer f.Close()
	got, err := c.Client.Download(t.Context(), id, client.BuildAuth{}, f, client.FetchOptions{})
	require.NoError(t, err)
	require.True(t, got.Verified)
	raw, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	return string(raw)
}

// CopyOrder is a build command: the result is the source's file.
const CopyOrder = `cat order.txt > "$TAKT_OUTPUT" && echo built`

// Messages returns the lines of a log.
func Messages(l api.Logs) []string {
	var out []string
	for _, e := range l.Logs {
		out = append(out, e.Message)
	}
	return out
}

// Worker is a worker that the test plays itself.
type Worker struct {
	c     *process.Controller
	ID    string
	Token string
}

// Register registers a worker with so many slots.
func Register(t *testing.T, c *process.Controller, slots int) *Worker {
	t.Helper()
	reg, err := c.Client.Register(t.Context(), api.Register{Name: "fake", Capabilities: fmt.Appendf(nil, `{"maxConcurrentBuilds":%d}`, slots)})
	require.NoError(t, err)
	return &Worker{c: c, ID: reg.ID, Token: reg.AccessToken}
}

// Poll asks for a build once.
func (w *Worker) Poll(t *testing.T) *api.Job {
	t.Helper()
	reply, err := w.c.Client.Poll(t.Context(), client.Poll{Token: w.Token})
	require.NoError(t, err)
	w.Token = reply.AccessToken
	return reply.Job
}

// Source returns the names and contents of a build's source, unpacked.
func (w *Worker) Source(t *testing.T, id string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "source.zip"))
	require.NoError(t, err)
	defer f.Close()
	_, err = w.c.Client.Source(t.Context(), client.Held{BuildID: id, WorkerID: w.ID}, f, client.FetchOptions{})
	require.NoError(t, err)
	return unzip(t, f.Name())
}

// Fleet returns the workers by name.
func Fleet(t *testing.T, c *process.Controller) map[string]api.Worker {
	t.Helper()
	list, err := c.Client.Workers(t.Context(), client.WorkerFilter{})
	require.NoError(t, err)
	fleet := map[string]api.Worker{}
	for _, w := range list.Workers {
		fleet[w.Name] = w
	}
	return fleet
}

// Files lists what a controller has on its disk, temporary files included.
func Files(t *testing.T, c *process.Controller) []string {
	t.Helper()
	names := []string{}
	dir := filepath.Join(c.DataDir, "files")
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && d.Type().IsRegular() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, name)
		}
		return err
	}))
	return names
}
