package command_test

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/takttest"
	"takt/store"
)

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
	files := takttest.UnpackBundle(t, file)
	require.Equal(t, "takt_ready 0\n", files["metrics.txt"])
	for _, fault := range []string{"database.json: no answer\n", "tree.json: not now\n", "cpu.pprof: not now\n"} {
		require.Contains(t, files["errors.txt"], fault)
	}
	d.fails(t, 1, "file exists", "debug", "bundle", "-o", file)
	require.Equal(t, files, takttest.UnpackBundle(t, file))

	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		controllertest.Problem(w, http.StatusForbidden, store.Forbidden, "Invalid admin key")
		return true
	})
	d.fails(t, 4, "Invalid admin key", "debug", "bundle", "-o", file+"2")
	require.NoFileExists(t, file+"2")
}
