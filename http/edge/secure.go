package edge

import (
	"net/http"
	"slices"
	"strings"
)

// apiPolicy is the Content-Security-Policy of all replies that are not pages. If a
// browser shows one, it loads and runs nothing.
const apiPolicy = "default-src 'none'; frame-ancestors 'none'"

// secureHeaders returns the headers of every reply; a handler may override them. The values
// are shared by all replies and never changed. With TLS, Strict-Transport-Security (RFC 6797)
// is among them, for only half a year, because it applies to every port of the host.
func secureHeaders(tls bool) http.Header {
	h := http.Header{
		"X-Content-Type-Options":  {"nosniff"},
		"Content-Security-Policy": {apiPolicy},
		"X-Frame-Options":         {"DENY"},
		"Referrer-Policy":         {"no-referrer"},
		"Cache-Control":           {"no-store"}, // many replies contain tokens
	}
	if tls {
		h["Strict-Transport-Security"] = []string{"max-age=15552000"}
	}
	return h
}

// crossOrigin reports whether pages of other origins may use path. They may use the API
// and the health routes, but not takt's own pages and /admin.
func crossOrigin(path string) bool {
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/public/") ||
		slices.Contains([]string{"/health", "/healthz", "/livez", "/readyz", "/metrics", "/openapi.yaml"}, strings.TrimSuffix(path, "/"))
}

// allowCrossOrigin lets pages of any origin use the API. It reports whether the request
// was only a CORS preflight.
func allowCrossOrigin(h http.Header, r *http.Request) (preflight bool) {
	origin := Header(r.Header, HeaderOrigin)
	if origin == "" || !crossOrigin(r.URL.Path) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Add("Vary", "Origin")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Link, Retry-After, ETag, Repr-Digest, RateLimit, RateLimit-Policy, Idempotent-Replayed, Takt-Ignored")
		return false
	}
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", "GET,HEAD,PUT,PATCH,POST,DELETE")
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	return true
}
