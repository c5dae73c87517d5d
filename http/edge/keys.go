package edge

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"

	"takt/http/api"
	"takt/store"
)

// These are the headers in net/http's canonical form, because Header.Get("X-API-Key")
// would allocate a string each time.
const (
	HeaderAPI         = "X-Api-Key"
	HeaderAdmin       = "X-Admin-Key"
	HeaderBuildToken  = "X-Build-Token"
	HeaderWorkerToken = "X-Worker-Token"
	HeaderInstance    = "X-Worker-Instance"
	keyRequestID      = "X-Request-Id"
	HeaderOrigin      = "Origin"

	keyRateLimit       = "Ratelimit"
	keyRateLimitPolicy = "Ratelimit-Policy"
)

// Header returns the first value of a header whose name is in canonical form.
func Header(h http.Header, canonical string) string {
	if v := h[canonical]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// secret is a key of which only the digest is kept. Digests are compared in constant
// time.
type secret struct {
	set bool
	sum [sha256.Size]byte
}

func newSecret(key string) secret { return secret{set: key != "", sum: sha256.Sum256([]byte(key))} }

func (s secret) Is(key string) bool {
	sum := sha256.Sum256([]byte(key))
	return subtle.ConstantTimeCompare(sum[:], s.sum[:]) == 1 && s.set
}

// Keys holds the keys that open routes.
type Keys struct {
	API, Admin secret
	// monitors says that telemetry needs no API key, see [Config.TelemetryWithoutKey].
	monitors bool
}

// NewKeys returns the keys of cfg.
func NewKeys(cfg Config) *Keys {
	return &Keys{newSecret(cfg.APIKey), newSecret(cfg.AdminKey), cfg.TelemetryWithoutKey}
}

// The errors of keys that are wrong.
var (
	ErrWrongKey      = store.NewError(store.InvalidAPIKey, "Invalid API key")
	ErrWrongAdminKey = store.NewError(store.Forbidden, "Invalid admin key")
)

// guesses reports whether a wrong key was sent beside what admits the request: an API key
// beside a build token, which may still be right, or an admin key beside the API key.
func (k *Keys) guesses(a api.Access, h http.Header) bool {
	key, admin := Header(h, HeaderAPI), Header(h, HeaderAdmin)
	return a == api.BuildKey && key != "" && Header(h, HeaderBuildToken) != "" && !k.API.Is(key) ||
		a == api.APIKey && admin != "" && !k.Admin.Is(admin)
}

// authorize checks what can be checked in memory. proven reports that a key was compared
// and is right.
func (k *Keys) authorize(a api.Access, h http.Header) (proven bool, err error) {
	key := Header(h, HeaderAPI)
	switch {
	case a == api.Public, a == api.Visitor, a == api.Reader, a == api.Operator, a == api.BuildKey && Header(h, HeaderBuildToken) != "": // builds.find checks a build token
		return false, nil
	case a == api.AdminKey:
		err = k.AuthorizeAdmin(Header(h, HeaderAdmin))
		return err == nil, err
	case a == api.MonitorKey && key == "" && k.monitors:
	case key == "" && a == api.BuildKey:
		return false, store.NewError(store.Unauthorized, "Missing X-API-Key or X-Build-Token header")
	case key == "":
		return false, store.NewError(store.Unauthorized, "Missing X-API-Key header")
	case !k.API.Is(key):
		return false, ErrWrongKey
	default:
		proven = true
	}
	switch a {
	case api.WorkerKey:
		err = needHeaders(h, api.HeaderWorkerID)
	case api.HolderKey, api.MonitorKey:
		err = needHeaders(h, api.HeaderWorkerID, api.HeaderBuildID)
	default:
	}
	return proven, err
}

// AuthorizeAdmin returns why key does not open what needs the admin key.
func (k *Keys) AuthorizeAdmin(key string) error {
	switch {
	case key == "":
		return store.NewError(store.Unauthorized, "Missing X-Admin-Key header")
	case !k.Admin.Is(key):
		return ErrWrongAdminKey
	}
	return nil
}

// needHeaders names the first header that is missing.
func needHeaders(h http.Header, names ...string) error {
	for _, name := range names {
		if h.Get(name) == "" {
			return store.NewError(store.Unauthorized, "Missing "+name+" header")
		}
	}
	return nil
}
