package store

import (
	"crypto/sha256"
	"slices"
	"sync/atomic"
	"time"
)

// Scope is a permission of a named key.
type Scope string

// The scopes. Admin includes all others but Enroll, because who has it can make keys.
const (
	ScopeSubmit  Scope = "submit"  // submit builds; see, retry and cancel those that the key submitted
	ScopeRead    Scope = "read"    // see all builds and workers
	ScopeWorker  Scope = "worker"  // be a worker
	ScopeWebhook Scope = "webhook" // see and set the rates of HubSpot's actions
	ScopeOperate Scope = "operate" // change builds, workers, deployments, queues and limits
	ScopeAdmin   Scope = "admin"   // everything
	ScopeEnroll  Scope = "enroll"  // get one key of a worker, once
)

// Scopes lists the scopes that a key may have together.
func Scopes() []Scope {
	return []Scope{ScopeSubmit, ScopeRead, ScopeWorker, ScopeWebhook, ScopeOperate, ScopeAdmin}
}

// NamedKey is a key with a name, or a token with which a worker gets one. The key itself is
// kept nowhere.
type NamedKey struct {
	Name string
	// Digest is the SHA-256 of the key. It needs no salt, because keys are random.
	Digest    [sha256.Size]byte
	Scopes    []Scope
	CreatedBy string
	CreatedAt time.Time
	// The zero time means never.
	ExpiresAt, LastUsedAt, RevokedAt time.Time
	// Weight is how large the share of the key's builds is beside those of other keys; 0 is 1.
	Weight int
	// MaxPending is how many of its builds may be pending; 0 is any number.
	MaxPending int
	// MaxPriority is the highest priority with which it may submit.
	MaxPriority int
	// Worker is the only worker that it may be; "" is any.
	Worker string
	// Enrolled keys were given for a token. The first worker that registers with one becomes its
	// Worker.
	Enrolled bool
}

// Binds reports whether k is for one worker only.
func (k *NamedKey) Binds() bool { return k != nil && (k.Worker != "" || k.Enrolled) }

// Of returns an error if k belongs to another worker than the one with this id.
func (k *NamedKey) Of(worker string) error {
	if k == nil || k.Worker == "" || k.Worker == worker {
		return nil
	}
	return ErrWorkerMismatch()
}

// ErrWorkerMismatch returns the error of a key that belongs to another worker.
func ErrWorkerMismatch() error {
	return NewError(WorkerMismatch, "This key belongs to another worker. For a machine that was set up anew, free it: takt keys set NAME --worker ''")
}

// Submits returns PriorityTooHigh unless k may submit builds of a priority. A key that may
// change the priority of every build may submit with any; so may a nil k, the API key.
func (k *NamedKey) Submits(priority int) error {
	if k == nil || priority <= k.MaxPriority || k.May(ScopeOperate) {
		return nil
	}
	return ErrPriorityTooHigh(k.Name, k.MaxPriority)
}

// KeyLimits are changes of a key; nil leaves a value as it is.
type KeyLimits struct {
	Weight, MaxPending, MaxPriority *int
	Worker                          *string
}

// May reports whether k has a scope. A nil k has none.
func (k *NamedKey) May(s Scope) bool {
	return k != nil && (slices.Contains(k.Scopes, s) || s != ScopeEnroll && slices.Contains(k.Scopes, ScopeAdmin))
}

// Live reports whether k may be used at now.
func (k *NamedKey) Live(now time.Time) bool {
	return k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt))
}

// State is active, expired or revoked.
func (k *NamedKey) State() string {
	switch {
	case !k.RevokedAt.IsZero():
		return "revoked"
	case !k.Live(time.Now()):
		return "expired"
	}
	return "active"
}

// KeyRing caches the named keys in memory, so that no request queries the database. The zero
// value is not loaded yet. It is safe for concurrent use.
type KeyRing struct{ keys atomic.Pointer[ringKeys] }

type ringKeys struct {
	// byDigest finds a key in a time that says nothing about it: the digest of what was sent
	// can't be steered towards that of a key.
	byDigest map[[sha256.Size]byte]*ringKey
	byName   map[string]*ringKey
}

type ringKey struct {
	NamedKey
	used atomic.Bool
}

// Set replaces all keys.
func (r *KeyRing) Set(keys []NamedKey) {
	next, last := &ringKeys{make(map[[sha256.Size]byte]*ringKey, len(keys)), make(map[string]*ringKey, len(keys))}, r.keys.Load()
	for _, k := range keys {
		kept := &ringKey{NamedKey: k}
		if last != nil && last.byName[k.Name] != nil {
			kept.used.Store(last.byName[k.Name].used.Load())
		}
		next.byDigest[k.Digest], next.byName[k.Name] = kept, kept
	}
	r.keys.Store(next)
}

// Find returns the live key that was sent, nil if there is none. Error: Unavailable, if the
// keys were not read yet.
func (r *KeyRing) Find(sent string) (*NamedKey, error) {
	if r == nil || sent == "" {
		return nil, nil // there is none, which is no error
	}
	keys := r.keys.Load()
	if keys == nil {
		return nil, NewUnavailable("The keys are not known yet, try again", nil)
	}
	return keys.byDigest[sha256.Sum256([]byte(sent))].use(), nil
}

// Named returns the live key with a name, nil if there is none.
func (r *KeyRing) Named(name string) *NamedKey {
	if r == nil || r.keys.Load() == nil {
		return nil
	}
	return r.keys.Load().byName[name].use()
}

func (k *ringKey) use() *NamedKey {
	if k == nil || !k.Live(time.Now()) {
		return nil
	}
	if !k.used.Load() { // because a write would take the line of memory from other processors
		k.used.Store(true)
	}
	return &k.NamedKey
}

// Active returns how many keys are live.
func (r *KeyRing) Active() (n int) {
	r.each(func(k *ringKey) {
		if k.Live(time.Now()) {
			n++
		}
	})
	return n
}

// TakeUsed returns the names of the keys that were used since the last call.
func (r *KeyRing) TakeUsed() (names []string) {
	r.each(func(k *ringKey) {
		if k.used.Swap(false) {
			names = append(names, k.Name)
		}
	})
	return names
}

func (r *KeyRing) each(f func(k *ringKey)) {
	if keys := r.keys.Load(); keys != nil {
		for _, k := range keys.byName {
			f(k)
		}
	}
}
