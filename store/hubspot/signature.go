package hubspot

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of signatures, in the canonical form of net/http.
const (
	HeaderSignature   = "X-Hubspot-Signature"
	HeaderVersion     = "X-Hubspot-Signature-Version"
	HeaderSignatureV3 = "X-Hubspot-Signature-V3"
	HeaderTimestamp   = "X-Hubspot-Request-Timestamp"
)

// maxAge is how far a version 3 timestamp may lie in the past or in the future.
const maxAge = 5 * time.Minute

// The reasons to refuse a request. The sender gets the same reply for all of them.
var (
	ErrNoSecret     = errors.New("no client secret is configured")
	ErrNoSignature  = errors.New("the request has no signature")
	ErrBadSignature = errors.New("the signature is wrong")
	ErrStale        = errors.New("the signature's timestamp is too old, or ahead")
	ErrVersion      = errors.New("the signature's version is not known")
)

// Check refuses a request that Verify would refuse whatever its body is: without a
// signature, with a malformed one, or with one that is too old. The body then need
// not be read.
func Check(secret string, h http.Header, now time.Time) error {
	if secret == "" {
		return ErrNoSecret
	}
	if _, v3 := h[HeaderSignatureV3]; v3 {
		ms, err := strconv.ParseInt(h.Get(HeaderTimestamp), 10, 64)
		if age := now.UnixMilli() - ms; err != nil || age > maxAge.Milliseconds() || age < -maxAge.Milliseconds() {
			return ErrStale
		}
		return sumOf(base64.StdEncoding.DecodeString(h.Get(HeaderSignatureV3)))
	}
	switch strings.ToLower(h.Get(HeaderVersion)) {
	case "v1", "v2", "":
	default:
		return ErrVersion
	}
	if h.Get(HeaderSignature) == "" {
		return ErrNoSignature
	}
	return sumOf(hex.DecodeString(h.Get(HeaderSignature)))
}

// sumOf refuses a sum that is not a SHA-256.
func sumOf(sum []byte, err error) error {
	if err != nil || len(sum) != sha256.Size {
		return ErrBadSignature
	}
	return nil
}

// Verify checks that the sender of a request knows the app's client secret. uri is
// the absolute URI that HubSpot was given, body the bytes as received.
//
// If there is a version 3 signature, only that one counts, because falling back to an
// older one would remove the protection against replays.
func Verify(secret, method, uri string, body []byte, h http.Header, now time.Time) error {
	if err := Check(secret, h, now); err != nil {
		return err
	}
	got, want := h.Get(HeaderSignature), ""
	switch _, v3 := h[HeaderSignatureV3]; {
	case v3:
		got, want = h.Get(HeaderSignatureV3), SignV3(secret, method, uri, body, h.Get(HeaderTimestamp))
	case strings.EqualFold(h.Get(HeaderVersion), "v2"):
		want = SignV2(secret, method, uri, body)
	default:
		want = SignV1(secret, body)
	}
	if !hmac.Equal([]byte(want), []byte(got)) {
		return ErrBadSignature
	}
	return nil
}

// SignV1 returns the SHA-256 of secret and body, in hexadecimal.
func SignV1(secret string, body []byte) string { return digest(secret, string(body)) }

// SignV2 returns the SHA-256 of secret, method, URI and body, in hexadecimal. It
// decodes nothing in the URI.
func SignV2(secret, method, uri string, body []byte) string {
	return digest(secret, strings.ToUpper(method), uri, string(body))
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return hex.EncodeToString(sum[:])
}

// SignV3 returns the HMAC-SHA256, keyed with the secret, of method, URI with its
// escapes decoded, body and timestamp, in base64. The timestamp is the header's text.
func SignV3(secret, method, uri string, body []byte, timestamp string) string {
	h := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(h, strings.ToUpper(method)+decodeV3(uri)) // a hash never fails
	h.Write(body)
	_, _ = io.WriteString(h, timestamp)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// decodeV3 decodes twelve escapes, in one pass, and no others: %253A, %20 and + stay
// as they are.
func decodeV3(uri string) string {
	if !strings.Contains(uri, "%") {
		return uri // most URIs have no escapes
	}
	var pairs []string
	for _, c := range ":/?@!$'()*,;" {
		pairs = append(pairs, fmt.Sprintf("%%%02X", c), string(c), fmt.Sprintf("%%%02x", c), string(c))
	}
	return strings.NewReplacer(pairs...).Replace(uri)
}

// URI returns the absolute URI that HubSpot called, for a server behind a proxy. It
// starts with base if that is set, else with what the proxy's headers say. It omits
// the scheme's default port and does not use X-Forwarded-Port.
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
	port := ""
	switch scheme {
	case "https":
		port = ":443"
	case "http":
		port = ":80"
	}
	return scheme + "://" + strings.TrimSuffix(host, port) + r.RequestURI
}

// first returns the first element of a list, which the outermost proxy wrote.
func first(list string) string {
	v, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(v)
}
