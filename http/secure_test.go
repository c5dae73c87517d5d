package http_test

import (
	"crypto/tls"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

func TestEveryReplyHasSecurityHeaders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned(part{"certs", "c.zip", "certs"})
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)
	for name, r := range map[string]reply{
		"JSON":      b.send("GET", "/api/builds", key(), ""),
		"a token":   b.send("GET", "/api/workers/poll", key("X-Worker-Token", w.AccessToken), ""),
		"a file":    b.send("GET", "/api/builds/"+s.ID+"/download", key(), ""),
		"a range":   b.send("GET", "/api/builds/"+s.ID+"/download", key("Range", "bytes=0-0"), ""),
		"an error":  b.send("GET", "/api/builds/x/status", key(), ""),
		"unknown":   b.send("GET", "/nothing", nil, ""),
		"405":       b.send("DELETE", "/health", nil, ""),
		"metrics":   b.send("GET", "/metrics", nil, ""),
		"preflight": b.send("OPTIONS", "/api/builds", map[string]string{"Origin": "https://example.org", "Access-Control-Request-Method": "GET"}, ""),
	} {
		require.Equal(t, "nosniff", r.header.Get("X-Content-Type-Options"), name)
		require.Equal(t, "no-referrer", r.header.Get("Referrer-Policy"), name)
		require.Equal(t, "DENY", r.header.Get("X-Frame-Options"), name)
		require.Equal(t, "default-src 'none'; frame-ancestors 'none'", r.header.Get("Content-Security-Policy"), name)
		require.Empty(t, r.header.Get("Strict-Transport-Security"), name)
		require.Contains(t, []string{"no-store", "private, no-cache"}, r.header.Get("Cache-Control"), name)
		require.Empty(t, r.header.Get("Server"), name)
	}
}

func TestRepliesWithSecretsAreNotStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	kind, form := form(source("s"), part{"certs", "c.zip", "certs"}, part{name: "platform", content: "ios"})
	submitted := b.send("POST", "/api/builds", key("Content-Type", kind), string(form))
	require.Equal(t, 201, submitted.status)
	registered := b.json("POST", "/api/workers/register", key(), `{"id":"w","name":"w","capabilities":{}}`)
	poll := b.send("GET", "/api/workers/poll?worker_id=w", key(), "")
	require.Contains(t, poll.body, `"job":{`)
	id := decode[struct{ ID string }](t, submitted).ID
	for name, r := range map[string]reply{
		"a build's token": submitted, "a worker's first token": registered, "its next token": poll,
		"certificates": b.send("GET", "/api/builds/"+id+"/certs", key("X-Worker-Id", "w"), ""),
	} {
		require.Less(t, r.status, 300, name)
		require.Equal(t, "no-store", r.header.Get("Cache-Control"), name)
	}
}

func TestStrictTransportIsPromisedUnderTLSOnly(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/livez", nil)
	r.TLS = &tls.ConnectionState{}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	require.Equal(t, "max-age=15552000", w.Header().Get("Strict-Transport-Security"))
}

func TestCORSOpensTheInterfaceOnly(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{})
	c := browserClient(t)
	for path, allowed := range map[string]bool{
		"/api/builds": true, "/api/nothing": true, "/api/stats": true, "/public/stats": true,
		"/livez": true, "/readyz/": true, "/openapi.yaml": true,
		"/": false, "/admin": false, "/admin/tree": false, "/admin/": false, "/login": false, "/builds/b": false,
		"/apix": false, "//api/builds": false, "/assets/app.js": false,
	} {
		for _, method := range []string{"GET", "OPTIONS"} {
			r := send(t, c, method, url+path, map[string]string{
				"Origin": "https://example.org", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key",
			}, nil)
			want := map[string]string{}
			if allowed { // whatever the status
				want = map[string]string{"Origin": "https://example.org", "Credentials": "true"}
			}
			if allowed && method == "OPTIONS" {
				require.Equal(t, 204, r.status, path)
				want["Methods"], want["Headers"] = "GET,HEAD,PUT,PATCH,POST,DELETE", "x-api-key"
			}
			for _, h := range []string{"Origin", "Credentials", "Methods", "Headers"} {
				require.Equal(t, want[h], r.header.Get("Access-Control-Allow-"+h), "%s %s %s", method, path, h)
			}
			require.Equal(t, allowed, strings.HasPrefix(r.header.Get("Vary"), "Origin"), path)
		}
	}
	require.Empty(t, send(t, c, "GET", url+"/livez", nil, nil).header.Get("Access-Control-Allow-Origin"))
}
