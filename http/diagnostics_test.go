package http_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

func (b *fixture) diagnose(worker, status string) reply {
	b.t.Helper()
	return b.json("POST", "/api/diagnostics/report", key(), `{"worker_id":"`+worker+`","status":"`+status+`","run_at":1764000000000,
		"duration_ms":1200.4,"auto_fixed":true,"checks":[{"name":"disk","status":"pass","message":"<120 GB> free","duration_ms":12,"auto_fixed":false}]}`)
}

func TestDiagnosticReportIsARowAndAFile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.register("w")
	path := "/api/diagnostics/" + w.ID
	requireBody(t, `{"worker_id":"`+w.ID+`","reports":[]}`, b.send("GET", path, key(), ""))
	r := b.send("GET", path+"/latest", key(), "")
	require.Equal(t, 404, r.status)
	requireProblem(t, r, "No diagnostic reports found", "not_found")

	var ids []string
	for _, status := range []string{"healthy", "warning", "critical"} {
		r := b.diagnose(w.ID, status)
		require.Equal(t, 200, r.status, r.body)
		requireShape(t, "posted_diagnostic", r)
		p := decode[api.PostedDiagnostic](t, r)
		require.Equal(t, "stored", p.Status)
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, p.ID)
		ids = append(ids, p.ID)
	}
	r = b.send("GET", path, key(), "")
	requireShape(t, "diagnostic_reports", r)
	list := decode[api.DiagnosticReports](t, r)
	require.Len(t, list.Reports, 3)
	for i, report := range list.Reports {
		require.Equal(t, ids[2-i], report.ID, "newest first")
	}
	latest := b.send("GET", path+"/latest", key(), "")
	requireShape(t, "diagnostic_report", latest)
	require.Equal(t, list.Reports[0], decode[api.DiagnosticReport](t, latest))
	require.Contains(t, latest.body, `"run_at":1764000000000,"duration_ms":1200,"auto_fixed":true,"checks":[{"name":"disk"`)
	require.Len(t, decode[api.DiagnosticReports](t, b.send("GET", path+"?limit=2", key(), "")).Reports, 2)

	files := b.files()
	require.Len(t, files, 3)
	for _, f := range files {
		require.True(t, strings.HasPrefix(f, "diagnostics/"+w.ID+"/2"), f)
		require.True(t, strings.HasSuffix(f, ".json"), f)
		raw, err := os.ReadFile(filepath.Join(b.dir, f))
		require.NoError(t, err)
		var stored api.DiagnosticReport
		require.NoError(t, json.Unmarshal(raw, &stored))
		require.Contains(t, ids, stored.ID)
	}
	require.Empty(t, b.temporaries())
	require.Equal(t, "critical", b.worker(w.ID).Diagnostics.Status)
}

func TestDiagnosticReportsAreChecked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.register("w")
	good := map[string]string{"worker_id": `"` + w.ID + `"`, "status": `"healthy"`, "run_at": "1", "duration_ms": "1", "auto_fixed": "false", "checks": "[]"}
	with := func(name, value string) string {
		var members []string
		for n, v := range good {
			if n == name {
				v = value
			}
			if v != "" {
				members = append(members, `"`+n+`":`+v)
			}
		}
		return "{" + strings.Join(members, ",") + "}"
	}
	for body, text := range map[string]string{
		"": "Missing field: worker_id", "{}": "Missing field: worker_id", "[]": "Invalid JSON body", "{": "Invalid JSON body",
		with("status", ""):           "Missing field: status",
		with("status", "null"):       "Missing field: status",
		with("run_at", ""):           "Missing field: run_at",
		with("duration_ms", ""):      "Missing field: duration_ms",
		with("checks", ""):           "Missing field: checks",
		with("checks", "{}"):         "Invalid request: checks must be an array of objects",
		with("checks", `"x"`):        "Invalid request: checks must be an array of objects",
		with("checks", "[7]"):        "Invalid request: checks must be an array of objects",
		with("checks", "[null]"):     "Invalid request: checks must be an array of objects",
		with("status", `"sick"`):     "Invalid status. Must be: healthy, warning, or critical",
		with("status", "7"):          "Invalid body: wrong type of status",
		with("run_at", `"now"`):      "Invalid body: wrong type of run_at",
		with("run_at", "-1"):         "Invalid request: run_at must be milliseconds since 1970",
		with("run_at", "1e300"):      "Invalid request: run_at must be milliseconds since 1970",
		with("duration_ms", "1e300"): "Invalid request: duration_ms must be a number of milliseconds",
		with("auto_fixed", `"yes"`):  "Invalid body: wrong type of auto_fixed",
	} {
		r := b.json("POST", "/api/diagnostics/report", key(), body)
		require.Equal(t, 400, r.status, "%s: %s", body, r.body)
		requireProblem(t, r, text, "invalid_argument")
	}
	for _, id := range []string{"unknown", "../w", "a/b", strings.Repeat("x", 65)} {
		r := b.json("POST", "/api/diagnostics/report", key(), with("worker_id", `"`+id+`"`))
		require.Equal(t, 404, r.status, id)
		requireProblem(t, r, "Worker not found", "not_found")
	}
	require.Empty(t, b.files(), "nothing is left of what was refused")
	for _, body := range []string{with("auto_fixed", ""), with("checks", `[{"name":"a\u0000\ud800","details":{"x":[1,2]}}]`)} {
		require.Equal(t, 200, b.json("POST", "/api/diagnostics/report", key(), body).status, body)
	}
	for _, bad := range []string{"limit=0", "limit=x", "limit=-1"} {
		require.Equal(t, 400, b.send("GET", "/api/diagnostics/"+w.ID+"?"+bad, key(), "").status)
	}
}

func TestReportsOfAWorkerAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, other := b.register("w"), b.register("other")
	require.Equal(t, 200, b.diagnose(other.ID, "healthy").status)
	for range 103 {
		require.Equal(t, 200, b.diagnose(w.ID, "healthy").status)
	}
	list := decode[api.DiagnosticReports](t, b.send("GET", "/api/diagnostics/"+w.ID+"?limit=1000", key(), ""))
	require.Len(t, list.Reports, 100)
	require.Len(t, b.files(), 101)
	require.Len(t, decode[api.DiagnosticReports](t, b.send("GET", "/api/diagnostics/"+other.ID, key(), "")).Reports, 1)
}

// nearlyFull is a disk that has less left than its reserve once so many files have
// looked.
type nearlyFull struct {
	takthttp.Files
	looks atomic.Int64
}

func (n *nearlyFull) Room() error {
	if n.looks.Add(-1) < 0 {
		return store.NewError(store.DiskFull, "The controller's disk is nearly full")
	}
	return nil
}

// New things are refused before the disk is full, what runs comes to its end.
func TestDiskThatIsNearlyFullTakesNothingNew(t *testing.T) {
	t.Parallel()
	disk := &nearlyFull{}
	b := setupWith(t, func(d *takthttp.Deps) { disk.Files = d.Files; d.Files = disk })
	disk.looks.Store(100)
	s, w := b.assigned()
	disk.looks.Store(0)
	rows, files := b.count(), b.files()
	submit := func(size int) reply {
		contentType, body := form(part{"source", "s.zip", strings.Repeat("x", size)}, part{name: "platform", content: "ios"})
		return b.send("POST", "/api/builds", key("Content-Type", contentType), string(body))
	}
	for what, r := range map[string]reply{
		"submit": submit(1), "retry": b.send("POST", "/api/builds/"+s.ID+"/retry", key(), ""), "report": b.diagnose(w.ID, "healthy"),
	} {
		require.Equal(t, 507, r.status, what)
		requireProblem(t, r, "The controller's disk is nearly full", "disk_full")
	}
	disk.looks.Store(1) // it fills up while the file comes in
	require.Equal(t, 507, submit(17<<20).status)
	require.Equal(t, rows, b.count())
	require.Equal(t, files, b.files())
	require.Empty(t, b.temporaries())
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)
}
