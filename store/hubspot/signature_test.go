package hubspot_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store/hubspot"
)

type vector struct {
	ID, Version, Method, URI, Secret, Why string
	Body64                                string `json:"body_base64"`
	Headers                               map[string]string
	HTTP                                  struct {
		Host  string
		Proto string `json:"forwarded_proto"`
		Path  string `json:"target"`
	}
	Now   int64
	Valid bool
}

// vectors reads those that come with HubSpot's documentation, and more of the
// same form from HUBSPOT_VECTORS.
func vectors(tb testing.TB) (all []vector) {
	tb.Helper()
	dirs := []string{"testdata"}
	if more := os.Getenv("HUBSPOT_VECTORS"); more != "" {
		dirs = append(dirs, more)
	}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.json"))
		require.NoError(tb, err)
		require.NotEmpty(tb, files, dir)
		for _, f := range files {
			raw, err := os.ReadFile(f)
			require.NoError(tb, err)
			var file struct{ Vectors []vector }
			require.NoError(tb, json.Unmarshal(raw, &file), f)
			require.NotEmpty(tb, file.Vectors, f)
			all = append(all, file.Vectors...)
		}
	}
	return all
}

func TestSignatureVectors(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for _, v := range vectors(t) {
		seen[fmt.Sprint(v.Version, " ", v.Valid)]++
		t.Run(v.ID+": "+v.Why, func(t *testing.T) {
			t.Parallel()
			body, err := base64.StdEncoding.DecodeString(v.Body64)
			require.NoError(t, err)
			h := http.Header{}
			for name, value := range v.Headers {
				h.Set(name, value)
			}
			now := time.Now()
			if v.Now != 0 {
				now = time.UnixMilli(v.Now)
			}
			r := httptest.NewRequest(v.Method, v.HTTP.Path, http.NoBody)
			r.Host, r.Header = v.HTTP.Host, h
			r.Header.Set("X-Forwarded-Proto", v.HTTP.Proto)
			uri := hubspot.URI("", r)
			require.Equal(t, v.URI, uri, "as seen behind a proxy")
			require.Equal(t, v.Valid, hubspot.Verify(v.Secret, v.Method, uri, body, h, now) == nil)
			require.Error(t, hubspot.Verify("", v.Method, uri, body, h, now), "without a secret nothing is valid")
			require.Error(t, hubspot.Verify(v.Secret+"x", v.Method, uri, body, h, now))
			if v.Valid {
				require.Error(t, hubspot.Verify(v.Secret, v.Method, uri, append(body, ' '), h, now), "not a byte more")
			}
		})
	}
	require.GreaterOrEqual(t, len(seen), 5, "good ones of each version, bad ones of v2 and v3: %v", seen)
}

const (
	secret = "3f1c8f0e-2c55-4b1d-9a67-0d1f6f7a1b22"
	uri    = "https://hooks.example.com/api/hubspot/action"
)

func signed(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func TestAWrongVersion3IsNotSavedByARightVersion2(t *testing.T) {
	t.Parallel()
	body, now := []byte(`{}`), time.UnixMilli(1767225600000)
	v2 := hubspot.SignV2(secret, "POST", uri, body)
	good := hubspot.SignV3(secret, "POST", uri, body, "1767225600000")
	both := func(v3, stamp string) error {
		h := signed("X-HubSpot-Signature", v2, "X-HubSpot-Signature-Version", "v2", "X-HubSpot-Signature-v3", v3)
		if stamp != "" {
			h.Set("X-HubSpot-Request-Timestamp", stamp)
		}
		return hubspot.Verify(secret, "POST", uri, body, h, now)
	}
	require.NoError(t, both(good, "1767225600000"))
	require.ErrorIs(t, both("wrong", "1767225600000"), hubspot.ErrBadSignature)
	require.ErrorIs(t, both(hubspot.SignV3("another", "POST", uri, body, "1767225600000"), "1767225600000"), hubspot.ErrBadSignature)
	require.ErrorIs(t, both("", "1767225600000"), hubspot.ErrBadSignature)
	require.ErrorIs(t, both(good, ""), hubspot.ErrStale)
	require.ErrorIs(t, both(good, "1767225600000.0"), hubspot.ErrStale)
}

func TestTimestampsAreGoodForFiveMinutesEitherWay(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1767225600000)
	for stamp, want := range map[string]error{
		"1767225300000": nil, "1767225299999": hubspot.ErrStale,
		"1767225900000": nil, "1767225900001": hubspot.ErrStale,
	} {
		h := signed("X-HubSpot-Signature-v3", hubspot.SignV3(secret, "POST", uri, nil, stamp), "X-HubSpot-Request-Timestamp", stamp)
		require.ErrorIs(t, hubspot.Verify(secret, "POST", uri, nil, h, now), want, stamp)
	}
}

func TestUnsignedAndUnknownVersionsAreRefused(t *testing.T) {
	t.Parallel()
	now := time.Now()
	require.ErrorIs(t, hubspot.Verify(secret, "POST", uri, nil, signed(), now), hubspot.ErrNoSignature)
	h := signed("X-HubSpot-Signature", hubspot.SignV2(secret, "POST", uri, nil), "X-HubSpot-Signature-Version", "v9")
	require.ErrorIs(t, hubspot.Verify(secret, "POST", uri, nil, h, now), hubspot.ErrVersion)
	h = signed("X-HubSpot-Signature", hubspot.SignV2(secret, "POST", uri, nil), "X-HubSpot-Signature-Version", "v1")
	require.ErrorIs(t, hubspot.Verify(secret, "POST", uri, nil, h, now), hubspot.ErrBadSignature, "one version is not another")
	require.ErrorIs(t, hubspot.Verify("", "POST", uri, nil, h, now), hubspot.ErrNoSecret)
}

func TestURI(t *testing.T) {
	t.Parallel()
	request := func(host string, secure bool, pairs ...string) *http.Request {
		r := httptest.NewRequest("POST", "/api/hubspot/action?b=%20+&a", http.NoBody)
		r.Host, r.Header = host, signed(pairs...)
		if secure {
			r.TLS = &tls.ConnectionState{}
		}
		return r
	}
	for want, got := range map[string]string{
		"https://public.example/api/hubspot/action?b=%20+&a": hubspot.URI("https://public.example/", request("inner:3000", false, "X-Forwarded-Host", "evil")),
		"https://a.example/api/hubspot/action?b=%20+&a":      hubspot.URI("", request("inner:3000", false, "X-Forwarded-Proto", "https, http", "X-Forwarded-Host", "a.example, b")),
		"http://127.0.0.1:3000/api/hubspot/action?b=%20+&a":  hubspot.URI("", request("127.0.0.1:3000", false)),
		"https://c.example/api/hubspot/action?b=%20+&a":      hubspot.URI("", request("c.example:443", true)),
		"http://d.example/api/hubspot/action?b=%20+&a":       hubspot.URI("", request("d.example:80", false)),
		"https://e.example:8443/api/hubspot/action?b=%20+&a": hubspot.URI("", request("e.example:8443", true)),
	} {
		require.Equal(t, want, got)
	}
}

func FuzzURI(f *testing.F) {
	f.Add("hooks.example.com", "https", "", "/api/hubspot/action?a=%2F&b")
	f.Add("10.0.0.1:3000", "https, http", "a.example:443, b", "/")
	f.Add("[::1]:80", "", "[::1", "//x?%zz")
	f.Fuzz(func(t *testing.T, host, proto, forwarded, target string) {
		r := &http.Request{Method: "POST", Host: host, RequestURI: target, URL: &url.URL{Path: "/"}, Header: http.Header{}}
		r.Header.Set("X-Forwarded-Proto", proto)
		r.Header.Set("X-Forwarded-Host", forwarded)
		require.True(t, strings.HasSuffix(hubspot.URI("", r), target), "what was asked for stays as it is")
		require.True(t, strings.HasPrefix(hubspot.URI("https://public.example/", r), "https://public.example"))
	})
}

func FuzzVerify(f *testing.F) {
	f.Add("POST", uri, []byte(`{}`), "v2", "sig", "1767225600000")
	for _, v := range vectors(f) {
		body, err := base64.StdEncoding.DecodeString(v.Body64)
		require.NoError(f, err)
		for _, version := range []string{"v1", "v2", ""} {
			signature := v.Headers["X-HubSpot-Signature"]
			if signature == "" || version == "" {
				signature = v.Headers["X-HubSpot-Signature-v3"]
			}
			f.Add(v.Method, v.URI, body, version, signature, v.Headers["X-HubSpot-Request-Timestamp"])
		}
	}
	f.Fuzz(func(t *testing.T, method, at string, body []byte, version, signature, stamp string) {
		h := http.Header{hubspot.HeaderSignature: {signature}, hubspot.HeaderVersion: {version}}
		if hubspot.Verify(secret, method, at, body, h, time.Now()) == nil && !strings.EqualFold(signature, hubspot.SignV1(secret, body)) {
			require.Equal(t, hubspot.SignV2(secret, method, at, body), signature)
		}
		h = http.Header{hubspot.HeaderSignatureV3: {signature}, hubspot.HeaderTimestamp: {stamp}}
		if hubspot.Verify(secret, method, at, body, h, time.Now()) == nil {
			require.Equal(t, hubspot.SignV3(secret, method, at, body, stamp), signature)
		}
	})
}
