package http_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDownloadOfAResult(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	path := "/api/builds/" + s.ID + "/download"
	r := b.send("GET", path, key(), "")
	require.Equal(t, 400, r.status)
	requireProblem(t, r, "Build not completed", "invalid_state")
	require.Empty(t, r.header.Get("Content-Disposition"))

	content := strings.Repeat("0123456789", 100_000)
	require.Equal(t, 200, b.finish(s.ID, w.ID, content).status)
	sum := sha256.Sum256([]byte(content))
	etag := `"` + hex.EncodeToString(sum[:]) + `"`
	r = b.send("GET", path, key(), "")
	require.Equal(t, 200, r.status)
	require.Equal(t, content, r.body)
	require.Equal(t, []string{"application/octet-stream"}, r.header["Content-Type"])
	require.Equal(t, `attachment; filename="`+s.ID+`.ipa"`, r.header.Get("Content-Disposition"))
	require.Equal(t, etag, r.header.Get("ETag"))
	require.Equal(t, "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":", r.header.Get("Repr-Digest"))
	require.Equal(t, "bytes", r.header.Get("Accept-Ranges"))

	r = b.send("HEAD", path, key(), "")
	require.Equal(t, 200, r.status)
	require.Equal(t, "1000000", r.header.Get("Content-Length"))
	require.Empty(t, r.body)
	r = b.send("HEAD", path, key("Range", "bytes=0-9"), "")
	require.Equal(t, 200, r.status, "RFC 9110 defines Range for GET only")
	require.Equal(t, "1000000", r.header.Get("Content-Length"))

	for name, tt := range map[string]struct {
		header []string
		status int
		body   string
	}{
		"a range":                  {[]string{"Range", "bytes=10-19"}, 206, "0123456789"},
		"the end":                  {[]string{"Range", "bytes=-3"}, 206, "789"},
		"the rest":                 {[]string{"Range", "bytes=999995-"}, 206, "56789"},
		"a range of this file":     {[]string{"Range", "bytes=0-0", "If-Range", etag}, 206, "0"},
		"a range of another file":  {[]string{"Range", "bytes=0-0", "If-Range", `"other"`}, 200, content},
		"a range beyond the end":   {[]string{"Range", "bytes=1000000-"}, 416, ""},
		"the last no bytes":        {[]string{"Range", "bytes=-0"}, 416, ""},
		"nothing, twice":           {[]string{"Range", "bytes=-0, -00"}, 416, ""},
		"nothing and something":    {[]string{"Range", "bytes=-0,10-19"}, 206, "0123456789"},
		"an unknown unit":          {[]string{"Range", "lines=1-2"}, 200, content},
		"no unit":                  {[]string{"Range", "0-9"}, 200, content},
		"a unit in capitals":       {[]string{"Range", "Bytes=0-9"}, 206, "0123456789"},
		"nothing of another file":  {[]string{"Range", "bytes=-0", "If-Range", `"other"`}, 200, content},
		"a file one already has":   {[]string{"If-None-Match", etag}, 304, ""},
		"a file that must be this": {[]string{"If-Match", `"other"`}, 412, ""},
	} {
		r := b.send("GET", path, key(tt.header...), "")
		require.Equal(t, tt.status, r.status, name)
		if tt.status < 300 {
			require.Equal(t, tt.body, r.body, name)
		}
		if tt.status == 416 {
			requireProblem(t, r, "The file has none of the bytes asked for", "range_not_satisfiable")
			require.Equal(t, "bytes */1000000", r.header.Get("Content-Range"))
			require.Empty(t, r.header.Get("Content-Disposition"))
		}
		if tt.status == 412 {
			requireProblem(t, r, "The file is not the one that If-Match names", "precondition_failed")
			require.Empty(t, r.header.Get("Content-Disposition"))
		}
	}
}
