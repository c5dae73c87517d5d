package http_test

import (
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

// pathNames returns some hundred names that try to be more than a name.
func pathNames() []string {
	names := []string{
		".", "..", "...", "~", "-", "--help", "*", "?", "#", "%", "%00", "\x00", "a\x00b", "con", "nul", "a b", "a\tb", "a\nb",
		"a\r\nX-Injected: 1", "ä", "日本", "\u202e", "\xff\xfe", "'", `"`, "`", ";", "|", "$(id)", "${HOME}", "{{7}}", "' OR '1'='1",
		"1; DROP TABLE builds", strings.Repeat("a", 65), strings.Repeat("a", 5000), "builds", "tmp/x", "a/b", `a\b`, "a:b", "C:", "//", "///etc",
	}
	for _, up := range []string{"../", `..\`, "%2e%2e/", "..%2f", "..%5c", "....//", "..;/", "./", "/"} {
		for depth := 1; depth <= 3; depth++ {
			for _, to := range []string{"etc/passwd", "source.zip", "tmp/x", "builds/x/certs.zip", "", "x\x00.zip"} {
				names = append(names, strings.Repeat(up, depth)+to)
			}
		}
	}
	return names
}

func TestNamesLikePathsReachNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	before := b.files()
	names := pathNames()
	require.GreaterOrEqual(t, len(names), 200)
	for _, name := range names {
		id := url.PathEscape(name)
		for _, r := range []reply{
			b.send("GET", "/api/builds/"+id+"/status", key(), ""),
			b.send("GET", "/api/builds/"+id+"/download", key(), ""),
			b.send("GET", "/api/builds/"+id+"/source", key("X-Worker-Id", w.ID), ""),
			b.send("GET", "/api/builds/"+id+"/certs", key("X-Worker-Id", w.ID), ""),
			b.send("GET", "/api/builds/"+s.ID+"/download/"+id, key(), ""),
			b.send("POST", "/api/builds/"+id+"/cancel", key(), ""),
			b.send("POST", "/api/builds/"+s.ID+"/heartbeat?worker_id="+url.QueryEscape(name), key(), ""),
			b.send("GET", "/api/workers/poll?worker_id="+url.QueryEscape(name), key(), ""),
			b.form("/api/workers/upload", key(), part{name: "build_id", content: name}, part{name: "worker_id", content: w.ID},
				part{name: "success", content: "true"}, part{"result", "x", "x"}),
			b.form("/api/builds", key(), part{"source", strings.NewReplacer("\r", "", "\n", "", `"`, "").Replace(name), "x"},
				part{name: "platform", content: name}),
		} {
			require.GreaterOrEqual(t, r.status, 300, "%q: %s", name, r.body)
			require.Less(t, r.status, 500, "%q: %s", name, r.body)
			require.NotContains(t, r.body, "root:")
			require.Empty(t, r.header.Get("X-Injected"))
		}
	}
	require.Equal(t, before, b.files())
	require.Equal(t, "assigned", b.status(s.ID).Status)
}

func TestHeaderValuesLikePathsReachNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	before := b.files()
	for _, name := range pathNames() {
		if !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\r\n") {
			continue // no client can send these
		}
		for _, r := range []reply{
			b.send("GET", "/api/builds/"+s.ID+"/source", key("X-Worker-Id", name), ""),
			b.form("/api/workers/upload", key("X-Build-Id", name, "X-Worker-Id", w.ID)),
			b.form("/api/workers/upload", key("X-Build-Id", s.ID, "X-Worker-Id", name)),
			b.send("GET", "/api/workers/poll", key("X-Worker-Token", name), ""),
			b.send("GET", "/api/builds/"+s.ID+"/status", map[string]string{"X-Build-Token": name}, ""),
		} {
			require.GreaterOrEqual(t, r.status, 400, "%q: %s", name, r.body)
			require.Less(t, r.status, 500, "%q: %s", name, r.body)
		}
	}
	require.Equal(t, before, b.files())
}

// bigForm is an upload whose file is size zero bytes.
func bigForm(build, worker string, size int64) (kind string, body io.Reader, length int64) {
	head := "--b\r\nContent-Disposition: form-data; name=\"build_id\"\r\n\r\n" + build +
		"\r\n--b\r\nContent-Disposition: form-data; name=\"worker_id\"\r\n\r\n" + worker +
		"\r\n--b\r\nContent-Disposition: form-data; name=\"success\"\r\n\r\ntrue" +
		"\r\n--b\r\nContent-Disposition: form-data; name=\"result\"; filename=\"r\"\r\n\r\n"
	const tail = "\r\n--b--\r\n"
	body = io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, size), strings.NewReader(tail))
	return "multipart/form-data; boundary=b", body, int64(len(head)) + size + int64(len(tail))
}

// It is alone, because it counts what the whole process allocates.
func TestLargeUploadAndDownloadNeedLittleMemory(t *testing.T) { //nolint:paralleltest // see above
	b := setup(t)
	s, w := b.assigned()
	const size = 256 << 20
	kind, body, length := bigForm(s.ID, w.ID, size)
	var before, between, after runtime.MemStats
	runtime.ReadMemStats(&before)

	c, r := dial(t, b.url)
	write(t, c, "POST /api/workers/upload HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\nContent-Type: "+kind+
		"\r\nContent-Length: "+strconv.FormatInt(length, 10)+"\r\n\r\n")
	_, err := io.Copy(c, body)
	require.NoError(t, err)
	resp := read(t, r)
	require.Equal(t, 200, resp.status, resp.body)
	runtime.ReadMemStats(&between)
	require.Less(t, between.TotalAlloc-before.TotalAlloc, uint64(8<<20), "allocated by the upload, in all")

	write(t, c, "GET /api/builds/"+s.ID+"/download HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\n\r\n")
	got, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	defer got.Body.Close()
	n, err := io.Copy(io.Discard, got.Body)
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-between.TotalAlloc, uint64(16<<20), "allocated by the download, in all")
}

func TestClientThatStopsSendingIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.StallTimeout = 50 * time.Millisecond })
	kind, whole := form(source(strings.Repeat("source ", 10)), part{name: "platform", content: "ios"})
	c, r := dial(t, b.url)
	write(t, c, "POST /api/builds/submit HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\nContent-Type: "+kind+
		"\r\nContent-Length: "+strconv.Itoa(len(whole))+"\r\n\r\n"+string(whole[:len(whole)/2]))
	resp := read(t, r)
	require.Equal(t, 400, resp.status)
	b.requireNothing()
}
