package http_test

import (
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

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
	const size = 64 << 20
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

func TestClientThatStopsReadingIsGivenUp(t *testing.T) {
	t.Parallel()
	r := &result{read: func(p []byte, _ int64) (int, error) { return len(p), nil }}
	s, _ := newServer(t, takthttp.Deps{Builds: r, Files: r}, func(c *takthttp.Config) { c.StallTimeout = 200 * time.Millisecond })
	url, _ := serve(t, s, listen(t))
	c, reply := dial(t, url)
	write(t, c, "GET /api/builds/b/download HTTP/1.1\r\nHost: takt\r\nX-API-Key: "+apiKey+"\r\n\r\n")
	line, err := reply.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "200 OK")
	require.Eventually(t, func() bool { return (&cut{T: t, server: s}).running() == 0 }, waitFor, tick)
	n, _ := io.Copy(io.Discard, reply) // what was on its way
	require.Less(t, n, int64(resultSize))
}
