package http_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// The bodies below have the form in which the published clients write them by
// hand, instead of with a library.

func TestSwiftWorkersHandMadeUpload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const boundary = "3F2504E0-4F89-41D3-9A0C-0305E82C3301"
	field := func(name, value string) string {
		return "--" + boundary + "\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	post := func(fields ...string) reply {
		return b.send("POST", "/api/workers/upload", key("Content-Type", "multipart/form-data; boundary="+boundary),
			strings.Join(fields, "")+"--"+boundary+"--\r\n")
	}

	s, w := b.assigned()
	app := "--" + boundary[:8] + "\r\n\x00 the app \r\n\r\n"
	r := post(field("build_id", s.ID), field("worker_id", w.ID), field("success", "true"),
		"--"+boundary+"\r\nContent-Disposition: form-data; name=\"result\"; filename=\"artifact.ipa\"\r\n"+
			"Content-Type: application/octet-stream\r\n\r\n"+app+"\r\n")
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, app, b.send("GET", "/api/builds/"+s.ID+"/download", key(), "").body)

	s, w = b.assigned()
	const reason = "The operation couldn’t be completed. (BuildVM.VMError error 3.)"
	r = post(field("build_id", s.ID), field("worker_id", w.ID), field("success", "false"), field("error_message", reason))
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, reason, *b.status(s.ID).ErrorMessage)
}

func TestVMScriptsPastedJSON(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()

	r := b.telemetry(s.ID, w.ID, `{
  "type": "heartbeat",
  "timestamp": "2026-01-30T12:00:00Z",
  "data": {
  "heartbeat_count": 3,
  "stage": "compiling",
  "metrics": {
  "cpu_percent": 12.5,
  "memory_mb": 482,
  "disk_percent": 7,
  "processes":      211
},
  "uptime_seconds": 90
}
}`)
	require.Equal(t, 200, r.status, r.body)
	lines := b.messages(s.ID)
	require.Contains(t, lines[len(lines)-1], "[VM] Stage: compiling | CPU: 12.5%")

	r = b.json("POST", "/api/builds/"+s.ID+"/heartbeat?worker_id="+w.ID, key(), `{"progress": 15}`)
	require.Equal(t, 200, r.status, r.body)
	lines = b.messages(s.ID)
	require.Equal(t, "Build progress: 15%", lines[len(lines)-1])

	// A compiler's quotes break what the script pastes: one line is lost, no more.
	r = b.json("POST", "/api/builds/"+s.ID+"/logs", key("X-Worker-Id", w.ID), `{"level":"info","message":"no module "Foo" \in scope"}`)
	require.Equal(t, 400, r.status, r.body)
	require.Equal(t, lines, b.messages(s.ID))
	require.Equal(t, "building", b.status(s.ID).Status)
}

func TestCommandLinesCancelHasAJSONTypeAndNoBody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.submit()
	r := b.json("POST", "/api/builds/"+s.ID+"/cancel", key(), "")
	require.Equal(t, 200, r.status, r.body)
	requireBody(t, `{"status":"cancelled","success":true}`, r)
	st := b.status(s.ID)
	require.Equal(t, []string{"failed", "cancelled", "Build cancelled by user"}, []string{st.Status, st.State, *st.ErrorMessage}, "old clients know no other word")
	require.Len(t, decode[[]api.BuildItem](t, b.send("GET", "/api/builds?status=failed", key(), "")), 1, "as old clients see it")
	require.Contains(t, b.messages(s.ID), "Build cancelled")
}
