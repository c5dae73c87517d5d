package hubspot

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of signatures, in the form in which net/http keeps them.
const (
	HeaderSignature   = "X-Hubspot-Signature"
	HeaderVersion     = "X-Hubspot-Signature-Version"
	HeaderSignatureV3 = "X-Hubspot-Signature-V3"
	HeaderTimestamp   = "X-Hubspot-Request-Timestamp"
)

// maxAge is how old a version 3 signature may be, and how far ahead.
const maxAge = 5 * time.Minute

// Why a request is refused. All are the same to whoever sent it.
var (
	ErrNoSecret     = errors.New("no client secret is configured")
	ErrNoSignature  = errors.New("the request has no signature")
	ErrBadSignature = errors.New("the signature is wrong")
	ErrStale        = errors.New("the signature's timestamp is too old, or ahead")
	ErrVersion      = errors.New("the signature's version is not known")
)

// Verify checks that whoever sent a request knows the app's client secret. uri is
// the absolute URI that HubSpot was given, body the bytes as they came.
//
// If there is a version 3 signature it alone counts: falling back to an older
// one would give its protection against replays away.
func Verify(secret, method, uri string, body []byte, h http.Header, now time.Time) error {
	if secret == "" {
		return ErrNoSecret
	}
	if _, v3 := h[HeaderSignatureV3]; v3 {
		return verifyV3(secret, method, uri, body, h, now)
	}
	got := h.Get(HeaderSignature)
	if got == "" {
		return ErrNoSignature
	}
	var want string
	switch strings.ToLower(h.Get(HeaderVersion)) {
	case "v1", "":
		want = SignV1(secret, body)
	case "v2":
		want = SignV2(secret, method, uri, body)
	default:
		return ErrVersion
	}
	if !hmac.Equal([]byte(want), []byte(got)) {
		return ErrBadSignature
	}
	return nil
}

func verifyV3(secret, method, uri string, body []byte, h http.Header, now time.Time) error {
	stamp := h.Get(HeaderTimestamp)
	ms, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return ErrStale
	}
	if age := now.UnixMilli() - ms; age > maxAge.Milliseconds() || age < -maxAge.Milliseconds() {
		return ErrStale
	}
	if !hmac.Equal([]byte(SignV3(secret, method, uri, body, stamp)), []byte(h.Get(HeaderSignatureV3))) {
		return ErrBadSignature
	}
	return nil
}

// SignV1 is SHA-256 of secret and body, in hexadecimal.
func SignV1(secret string, body []byte) string { return digest(secret, string(body)) }

// SignV2 is SHA-256 of secret, method, URI and body, in hexadecimal. Nothing in
// the URI is decoded.
func SignV2(secret, method, uri string, body []byte) string {
	return digest(secret, strings.ToUpper(method), uri, string(body))
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return hex.EncodeToString(sum[:])
}

// SignV3 is HMAC-SHA256, keyed with the secret, of method, URI with its escapes
// decoded, body and timestamp, in base64. The timestamp is the header's text.
func SignV3(secret, method, uri string, body []byte, timestamp string) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(strings.ToUpper(method) + decodeV3(uri) + string(body) + timestamp))
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// decodeV3 turns twelve escapes back into characters, in one pass, and no others:
// %253A, %20 and + stay as they are.
func decodeV3(uri string) string {
	if !strings.Contains(uri, "%") {
		return uri // as most are
	}
	var pairs []string
	for _, c := range ":/?@!$'()*,;" {
		pairs = append(pairs, fmt.Sprintf("%%%02X", c), string(c), fmt.Sprintf("%%%02x", c), string(c))
	}
	return strings.NewReplacer(pairs...).Replace(uri)
}

// URI is the absolute URI that HubSpot called, for a server behind a proxy: that
// of base, if there is one, else what the proxy says of itself. Ports that are
// the default, or the proxy's own business, are left out.
func URI(base string, r *http.Request) string {
	if base != "" {
		return strings.TrimSuffix(base, "/") + r.RequestURI
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	scheme = strings.ToLower(cmp.Or(first(r.Header.Get("X-Forwarded-Proto")), scheme))
	host := cmp.Or(first(r.Header.Get("X-Forwarded-Host")), r.Host)
	port := map[string]string{"https": ":443", "http": ":80"}[scheme]
	return scheme + "://" + strings.TrimSuffix(host, port) + r.RequestURI
}

// first is the first of a list, which is that of the outermost proxy.
func first(list string) string {
	v, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(v)
}
