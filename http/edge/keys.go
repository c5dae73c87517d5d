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
	var room [64]byte // for usual keys, whose conversion would allocate
	sum := sha256.Sum256(append(room[:0], key...))
	return subtle.ConstantTimeCompare(sum[:], s.sum[:]) == 1 && s.set
}

// Keys has the API key and the admin key of the settings, and the named keys. Safe for
// concurrent use.
type Keys struct {
	API, Admin secret
	ring       *store.KeyRing // nil: there are no named keys
	// monitors is [Config.TelemetryWithoutKey].
	monitors bool
}

// NewKeys returns the keys of cfg, and those of ring.
func NewKeys(cfg Config, ring *store.KeyRing) *Keys {
	return &Keys{newSecret(cfg.APIKey), newSecret(cfg.AdminKey), ring, cfg.TelemetryWithoutKey}
}

// Named returns the valid named key that was sent, nil if it is none.
func (k *Keys) Named(sent string) *store.NamedKey {
	found, _ := k.ring.Find(sent) // authorize returns the error if no keys were read yet
	return found
}

// Called returns the valid key with a name, nil if there is none.
func (k *Keys) Called(name string) *store.NamedKey { return k.ring.Named(name) }

// Shown reports whether X-API-Key is the API key or a valid named key.
func (k *Keys) Shown(h http.Header) bool {
	sent := Header(h, HeaderAPI)
	return k.API.Is(sent) || k.Named(sent) != nil
}

// Reads reports whether a key was sent that may see every build: the API key, the admin key, or a
// named key in either header.
func (k *Keys) Reads(h http.Header) bool {
	api, admin := Header(h, HeaderAPI), Header(h, HeaderAdmin)
	return k.API.Is(api) || k.Admin.Is(admin) || k.Named(api).May(store.ScopeRead) || k.Named(admin).May(store.ScopeRead)
}

// Wrong reports whether a key was sent, in either header, but none that is valid there.
func (k *Keys) Wrong(h http.Header) bool {
	admin := Header(h, HeaderAdmin)
	return (admin != "" || Header(h, HeaderAPI) != "") && !k.Shown(h) && !k.Admin.Is(admin) && k.Named(admin) == nil
}

// missing is the error of a key that lacks a scope.
func missing(s store.Scope) error {
	return store.NewError(store.MissingScope, "This key needs the scope "+string(s))
}

// The errors for wrong keys.
var (
	ErrWrongKey      = store.NewError(store.InvalidAPIKey, "Invalid API key")
	ErrWrongAdminKey = store.NewError(store.Forbidden, "Invalid admin key")
)

// guesses reports whether a wrong key was sent although something else admits the request: an
// API key beside a build token, or an admin key beside the API key.
func (k *Keys) guesses(a api.Access, h http.Header) bool {
	key, admin := Header(h, HeaderAPI), Header(h, HeaderAdmin)
	return a == api.BuildKey && key != "" && Header(h, HeaderBuildToken) != "" && !k.Shown(h) ||
		a == api.APIKey && admin != "" && !k.Admin.Is(admin) && k.Named(admin) == nil
}

// authorize checks what can be checked in memory. who is the named key that was sent, if any.
// proven is true if a key was compared and is right.
func (k *Keys) authorize(r *Route, h http.Header) (who *store.NamedKey, proven bool, err error) {
	a, key, name := r.Access, Header(h, HeaderAPI), HeaderAPI
	switch {
	case a == api.Public, a == api.Visitor, a == api.Reader, a == api.Operator:
		return nil, false, nil
	case a == api.BuildKey && Header(h, HeaderBuildToken) != "": // builds.find checks both
		return k.Named(key), false, nil
	case a == api.AdminKey:
		// A named key may be in either header.
		if sent := Header(h, HeaderAdmin); sent != "" || k.Named(key) == nil {
			key, name = sent, api.HeaderAdminKey
		}
		if k.Admin.Is(key) {
			return nil, true, nil
		}
	case a == api.MonitorKey && key == "" && k.monitors:
		return nil, false, needHeaders(h, api.HeaderWorkerID, api.HeaderBuildID)
	case key == "" && a == api.BuildKey:
		return nil, false, store.NewError(store.Unauthorized, "Missing X-API-Key or X-Build-Token header")
	default:
		proven, name = k.API.Is(key), api.HeaderAPIKey
	}
	if key == "" {
		return nil, false, store.NewError(store.Unauthorized, "Missing "+name+" header")
	}
	if !proven {
		if who, err = k.ring.Find(key); err != nil {
			return nil, false, err
		}
		switch proven = who != nil; {
		case !proven && a == api.AdminKey:
			return nil, false, ErrWrongAdminKey
		case !proven:
			return nil, false, ErrWrongKey
		case !who.May(r.Scope) && (!r.Own || !who.May(store.ScopeSubmit)):
			return who, true, missing(r.Scope)
		}
	}
	switch a {
	case api.WorkerKey:
		err = needHeaders(h, api.HeaderWorkerID)
	case api.HolderKey, api.MonitorKey:
		err = needHeaders(h, api.HeaderWorkerID, api.HeaderBuildID)
	default:
	}
	return who, proven, err
}

// needHeaders returns an error that names the first missing header.
func needHeaders(h http.Header, names ...string) error {
	for _, name := range names {
		if h.Get(name) == "" {
			return store.NewError(store.Unauthorized, "Missing "+name+" header")
		}
	}
	return nil
}
