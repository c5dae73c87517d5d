package http

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/store"
)

// access is who may use a route, as far as memory can decide. Handlers check what needs
// the database (build tokens, who holds a build).
type access uint8

const (
	public     access = iota
	apiKey            // X-API-Key
	buildKey          // X-API-Key, or X-Build-Token: see builds.authorized
	workerKey         // X-API-Key and X-Worker-Id: see beatOf
	holderKey         // as workerKey, and X-Build-Id: see holderOf
	monitorKey        // as holderKey; without X-API-Key if Config.TelemetryWithoutKey
	adminKey          // X-Admin-Key
	visitor           // anybody with a browser
	reader            // a session; like operator, checked by dashboard.permit
	operator          // a session that began with the admin key
)

// These are the headers in net/http's canonical form, because Header.Get("X-API-Key")
// would allocate a string each time.
const (
	keyAPI         = "X-Api-Key"
	keyAdmin       = "X-Admin-Key"
	keyBuildToken  = "X-Build-Token"
	keyWorkerToken = "X-Worker-Token"
	keyInstance    = "X-Worker-Instance"
	keyRequestID   = "X-Request-Id"
	keyOrigin      = "Origin"

	keyRateLimit       = "Ratelimit"
	keyRateLimitPolicy = "Ratelimit-Policy"
)

func header(h http.Header, canonical string) string {
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

func (s secret) is(key string) bool {
	sum := sha256.Sum256([]byte(key))
	return subtle.ConstantTimeCompare(sum[:], s.sum[:]) == 1 && s.set
}

// keys holds the keys that open routes.
type keys struct {
	api, admin secret
	// monitors says that telemetry needs no API key, see [Config.TelemetryWithoutKey].
	monitors bool
}

func newKeys(cfg Config) *keys {
	return &keys{newSecret(cfg.APIKey), newSecret(cfg.AdminKey), cfg.TelemetryWithoutKey}
}

var errWrongKey = store.NewError(store.InvalidAPIKey, "Invalid API key")

// guesses reports whether a wrong key was sent beside what admits the request: an API key
// beside a build token, which may still be right, or an admin key beside the API key.
func (k *keys) guesses(a access, h http.Header) bool {
	key, admin := header(h, keyAPI), header(h, keyAdmin)
	return a == buildKey && key != "" && header(h, keyBuildToken) != "" && !k.api.is(key) ||
		a == apiKey && admin != "" && !k.admin.is(admin)
}

// authorize checks what can be checked in memory. proven reports that a key was compared
// and is right.
func (k *keys) authorize(a access, h http.Header) (proven bool, err error) {
	key := header(h, keyAPI)
	switch {
	case a == public, a == visitor, a == reader, a == operator, a == buildKey && header(h, keyBuildToken) != "": // builds.find checks a build token
		return false, nil
	case a == adminKey:
		err = k.authorizeAdmin(header(h, keyAdmin))
		return err == nil, err
	case a == monitorKey && key == "" && k.monitors:
	case key == "" && a == buildKey:
		return false, store.NewError(store.Unauthorized, "Missing X-API-Key or X-Build-Token header")
	case key == "":
		return false, store.NewError(store.Unauthorized, "Missing X-API-Key header")
	case !k.api.is(key):
		return false, errWrongKey
	default:
		proven = true
	}
	switch a {
	case workerKey:
		err = needHeaders(h, api.HeaderWorkerID)
	case holderKey, monitorKey:
		err = needHeaders(h, api.HeaderWorkerID, api.HeaderBuildID)
	default:
	}
	return proven, err
}

func (k *keys) authorizeAdmin(key string) error {
	switch {
	case key == "":
		return store.NewError(store.Unauthorized, "Missing X-Admin-Key header")
	case !k.admin.is(key):
		return store.NewError(store.Forbidden, "Invalid admin key")
	}
	return nil
}

// maxWrongEntries is how many addresses a minute are named in the audit. The log names
// all.
const maxWrongEntries = 20

const (
	// maxGuesses is how many wrong keys an address may show in a minute before the answers
	// to further ones are delayed by guessDelay.
	maxGuesses = 100
	guessDelay = time.Second
	// maxDelayed is how many answers are delayed at once, maxDelayedOf how many of one
	// address. Further wrong keys get no answer: their connection is closed.
	maxDelayed   = 256
	maxDelayedOf = 16
)

// wrongKeys limits guessing of keys: an address may show so many wrong keys a minute, then
// gets a Retry-After, and beyond maxGuesses is slowed. A right key is never refused or
// delayed.
type wrongKeys struct {
	most  int // wrong keys a minute; negative: no limit
	log   zerolog.Logger
	count prometheus.Counter
	// report writes an entry into the audit. It does not block.
	report func(e store.AuditEntry)

	mu      sync.Mutex // guards what follows
	by      map[string]*guesser
	ends    time.Time // the end of this minute
	delayed int
}

// guesser is an address that showed wrong keys. Its fields are guarded by wrongKeys.mu.
type guesser struct {
	wrong   int // in this minute
	delayed int // answers
}

// meansWrongKey reports whether authorize or a login returned err for a wrong key, not for
// a missing one.
func meansWrongKey(err error) bool {
	code := store.CodeOf(err)
	return code == store.InvalidAPIKey || code == store.Forbidden
}

// note counts err if it means a wrong key, and returns the error for the client.
func (w *wrongKeys) note(who string, err error, now time.Time) error {
	if !meansWrongKey(err) {
		return err
	}
	w.count.Inc()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !now.Before(w.ends) {
		w.by, w.ends = map[string]*guesser{}, now.Add(time.Minute)
	}
	g := w.by[who]
	if g == nil {
		if len(w.by) >= quotaKeys { // the map is full: a limit per address would not stop such a client
			return err
		}
		g = &guesser{}
		w.by[who] = g
		w.log.Warn().Str("remote", printAddr(who)).Err(err).Msg("a wrong key was shown; others of this address are only counted for a minute")
		if len(w.by) <= maxWrongEntries {
			w.report(store.AuditEntry{At: now, Actor: "unknown@" + printAddr(who), Action: "show wrong key", Outcome: failureOf(err).Message})
		}
	}
	g.wrong++
	if w.most < 0 || g.wrong <= w.most {
		return err
	}
	return &store.Error{Code: store.RateLimited, Message: "Too many wrong keys, wait a minute", RetryAfter: w.ends.Sub(now), Err: err}
}

// slow delays the answer to a wrong key of an address that guesses, and has the connection
// closed after it, because more guesses may wait on it. It returns an error if there is to
// be no answer.
func (w *wrongKeys) slow(ctx context.Context, who string, h http.Header) error {
	w.mu.Lock()
	g := w.by[who]
	if g == nil || w.most < 0 || g.wrong <= maxGuesses {
		w.mu.Unlock()
		return nil
	}
	if w.delayed >= maxDelayed || g.delayed >= maxDelayedOf {
		w.mu.Unlock()
		return http.ErrAbortHandler
	}
	w.delayed++
	g.delayed++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.delayed--
		g.delayed--
		w.mu.Unlock()
	}()
	h.Set("Connection", "close")
	timer := time.NewTimer(guessDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return http.ErrAbortHandler
	}
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
