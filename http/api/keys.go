package api

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"takt/store"
)

// Key is a key with a name, or a token with which a worker gets one.
type Key struct {
	Name   string        `json:"name"`
	Scopes []store.Scope `json:"scopes"`
	// State says whether it may be used.
	State      string `json:"state" enum:"active,expired,revoked"`
	CreatedBy  string `json:"created_by"`
	CreatedAt  string `json:"created_at" schema:"Time"`
	ExpiresAt  string `json:"expires_at,omitempty" schema:"Time"`
	RevokedAt  string `json:"revoked_at,omitempty" schema:"Time"`
	LastUsedAt string `json:"last_used_at,omitempty" schema:"Time"` // to within two minutes
	// Weight is how large the share of its builds is beside those of other keys.
	Weight int `json:"weight"`
	// MaxPending is how many of its builds may be pending; 0 is any number.
	MaxPending int `json:"max_pending"`
	// MaxPriority is the highest priority with which it may submit.
	MaxPriority int `json:"max_priority"`
	// Worker is the only worker that it may be. Without one it may be any, or if it is
	// enrolled, the first that registers with it.
	Worker   string `json:"worker,omitempty" schema:"ID"`
	Enrolled bool   `json:"enrolled,omitempty"`
}

// NewKey converts a key.
func NewKey(k store.NamedKey) Key {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return FormatTime(t)
	}
	return Key{
		Name: k.Name, Scopes: k.Scopes, State: k.State(), CreatedBy: k.CreatedBy, CreatedAt: at(k.CreatedAt),
		ExpiresAt: at(k.ExpiresAt), RevokedAt: at(k.RevokedAt), LastUsedAt: at(k.LastUsedAt), Weight: max(k.Weight, 1), MaxPending: k.MaxPending, MaxPriority: k.MaxPriority,
		Worker: k.Worker, Enrolled: k.Enrolled,
	}
}

// Keys answers GET /admin/keys, those in force first.
type Keys struct {
	Keys []Key `json:"keys"`
}

// CreateKeyIn is the body of POST /admin/keys.
type CreateKeyIn struct {
	// Name is 1 to 64 of [A-Za-z0-9._-]. No key ever had it.
	Name string `json:"name" pattern:"^[A-Za-z0-9._-]{1,64}$"`
	// Scopes are submit, read, worker, webhook, operate and admin, or enroll alone: that makes
	// a token with which one worker gets a key of its own.
	Scopes []store.Scope `json:"scopes"`
	// Expires is when the key ends, such as 720h or 90d from now; "" is never, of a token in
	// an hour.
	Expires string `json:"expires,omitempty"`
	// Weight is 1 to 1000, by default 1: of three builds that start while those of two keys
	// wait, a key of weight 2 has two.
	Weight int `json:"weight,omitempty" max:"1000"`
	// MaxPending is how many of its builds may be pending: 1 to 1000000, or 0 for any number.
	MaxPending int `json:"max_pending,omitempty" max:"1000000"`
	// MaxPriority is the highest priority with which it may submit. With the scope operate it
	// may submit with any.
	MaxPriority int `json:"max_priority,omitempty" min:"-10" max:"10" default:"0"`
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// MadeKey is a new key. Nothing shows it again.
type MadeKey struct {
	Name      string `json:"name"`
	Key       string `json:"key" pattern:"^[A-Za-z0-9_-]{16,}$"`
	ExpiresAt string `json:"expires_at,omitempty" schema:"Time"`
}

// LimitKeyIn is the input of LimitKey.
type LimitKeyIn struct {
	Name string    `path:"name"`
	Body KeyLimits `body:"json"`
}

// KeyLimits is the body of PATCH /admin/keys/:name. What is left out stays as it is.
type KeyLimits struct {
	// Weight is 1 to 1000. Builds that wait keep their positions.
	Weight *int `json:"weight,omitempty" min:"1" max:"1000"`
	// MaxPending is how many of its builds may be pending: 1 to 1000000, or 0 for any number.
	MaxPending *int `json:"max_pending,omitempty" max:"1000000"`
	// MaxPriority is the highest priority with which it may submit. Builds that wait keep theirs.
	MaxPriority *int `json:"max_priority,omitempty" min:"-10" max:"10"`
	// Worker is the id of the only worker that the key may be. "" frees it: for any worker, or if
	// it is enrolled, for the next that registers with it.
	Worker *string `json:"worker,omitempty"`
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// RevokeKeyIn is the input of RevokeKey.
type RevokeKeyIn struct {
	Name string `path:"name"`
	Why
}

// EnrollIn is the body of POST /api/workers/enroll.
type EnrollIn struct {
	// Name is that of the worker; its key's name begins with it.
	Name string `json:"name" min:"1"`
}

// ListKeys is GET /admin/keys.
var ListKeys = declare[None, Keys](operators, AdminKey, scopeAdmin, Ops, "GET /admin/keys", Route{ID: "listKeys", Summary: "List the keys with names, valid ones first"})

// CreateKey is POST /admin/keys.
var CreateKey = declare[CreateKeyIn, MadeKey](operators, AdminKey, scopeAdmin, Ops, "POST /admin/keys", Route{
	ID: "createKey", Status: 201, Errors: []int{409}, Summary: "Make a key with a name, or a token with which a worker gets one",
	Says: "The key. It is not shown again.",
})

// LimitKey is PATCH /admin/keys/:name.
var LimitKey = declare[LimitKeyIn, Key](operators, AdminKey, scopeAdmin, Ops, "PATCH /admin/keys/:name", Route{
	ID: "limitKey", Summary: "Set the weight of a key, how many of its builds may be pending, and its worker", Says: "The key as it is now.",
})

// RevokeKey is DELETE /admin/keys/:name.
var RevokeKey = declare[RevokeKeyIn, None](operators, AdminKey, scopeAdmin, Ops, "DELETE /admin/keys/:name", Route{
	ID: "revokeKey", Status: 204, Summary: "Revoke a key on all controllers", Says: "The key is revoked.",
})

// EnrollWorker is POST /api/workers/enroll.
var EnrollWorker = declare[EnrollIn, MadeKey](workers, APIKey, scopeEnroll, Write, "POST /api/workers/enroll", Route{
	ID: "enrollWorker", Status: 201, Summary: "Exchange an enrolment token for a worker's own key",
	Text: "The token is sent as `X-API-Key`. It can be used once; other keys are refused.", Says: "The key. It is not shown again.",
})

var keyName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Check implements [Checker].
func (k *CreateKeyIn) Check() error {
	if !keyName.MatchString(k.Name) {
		return invalid("name must be 1 to 64 characters of [A-Za-z0-9._-]")
	}
	for _, s := range k.Scopes {
		if !slices.Contains(store.Scopes(), s) && (s != store.ScopeEnroll || len(k.Scopes) > 1) {
			return invalid("scopes must be of submit, read, worker, webhook, operate and admin, or enroll alone")
		}
	}
	if len(k.Scopes) == 0 {
		return invalid("scopes required")
	}
	if k.Expires != "" {
		if _, err := ParseDays(k.Expires); err != nil {
			return err
		}
	}
	if err := checkShare(max(k.Weight, 1), k.MaxPending, k.MaxPriority); err != nil || k.Weight < 0 {
		return cmp.Or(err, wrongWeight())
	}
	return cleanReason(&k.Reason)
}

func wrongWeight() error { return invalid("weight must be 1 to 1000") }

func checkShare(weight, maxPending, maxPriority int) error {
	if weight < 1 || weight > 1000 {
		return wrongWeight()
	}
	if maxPending < 0 || maxPending > 1_000_000 {
		return invalid("max_pending must be 0 to 1000000")
	}
	if maxPriority < store.MinPriority || maxPriority > store.MaxPriority {
		return invalid("max_priority must be -10 to 10")
	}
	return nil
}

// Check implements [Checker].
func (k *KeyLimits) Check() error {
	weight, most, priority := 1, 0, 0
	if k.Weight == nil && k.MaxPending == nil && k.MaxPriority == nil && k.Worker == nil {
		return invalid("weight, max_pending, max_priority or worker required")
	}
	if k.Worker != nil && *k.Worker != "" && !store.ValidID(*k.Worker) {
		return invalid("worker must be the id of a worker, or empty")
	}
	if k.Weight != nil {
		weight = *k.Weight
	}
	if k.MaxPending != nil {
		most = *k.MaxPending
	}
	if k.MaxPriority != nil {
		priority = *k.MaxPriority
	}
	if err := checkShare(weight, most, priority); err != nil {
		return err
	}
	return cleanReason(&k.Reason)
}

// Check implements [Checker].
func (e *EnrollIn) Check() error {
	if e.Name == "" {
		return invalid("name required")
	}
	return nil
}

// ParseDays reads the time that a key lasts, such as 90d or 12h: at least a second, and at most
// a hundred years.
func ParseDays(v string) (time.Duration, error) {
	unit := time.Duration(1)
	if days, ok := strings.CutSuffix(v, "d"); ok {
		v, unit = days+"h", 24
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < time.Second || d > 100*365*24*time.Hour/unit {
		return 0, invalid(`expires must be a time such as "90d" or "12h"`)
	}
	return d * unit, nil
}
