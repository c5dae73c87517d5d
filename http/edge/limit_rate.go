package edge

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"takt/store"
)

// maxKeys is how many keys a limit remembers; normal use needs only a few of them.
const maxKeys = 1 << 16

// recent remembers the values of keys for life to twice as long after they were put. While
// there are too many, new keys are not remembered. Not safe for concurrent use.
type recent[V any] struct {
	life time.Duration
	// young has the keys put since turned, old those of the time before.
	young, old map[string]V
	turned     time.Time
}

func (r *recent[V]) get(key string, now time.Time) (v V, ok bool) {
	age := now.Sub(r.turned)
	if v, ok = r.young[key]; ok && age < 2*r.life {
		return v, true
	}
	if v, ok = r.old[key]; ok && age < r.life {
		return v, true
	}
	var none V
	return none, false
}

func (r *recent[V]) put(key string, v V, now time.Time) {
	if age := now.Sub(r.turned); age >= r.life || r.young == nil {
		if r.old = r.young; age >= 2*r.life {
			r.old = nil
		}
		r.young, r.turned = map[string]V{}, now
	}
	if _, known := r.young[key]; known || len(r.young) < maxKeys/2 {
		r.young[key] = v
	}
}

// Quota limits how often each of many keys may do something: rate times a second, with bursts
// of the same number. A key that does nothing for a second has its full burst again and is
// forgotten. When there are too many keys to remember, new ones are admitted, because a client
// must not be refused for what others do, and a limit would not stop a client that invents so
// many keys. Safe for concurrent use.
type Quota struct {
	name string
	rate int

	mu   sync.Mutex // guards what follows
	by   recent[*rate.Limiter]
	last time.Time // the latest time of a call
}

// NewQuota returns a quota of perSecond. If that is negative it returns nil, which admits
// everything.
func NewQuota(name string, perSecond int) *Quota {
	if perSecond < 0 {
		return nil
	}
	return &Quota{name: name, rate: perSecond, by: recent[*rate.Limiter]{life: time.Second}}
}

// take takes one from key's allowance and returns how many are left, or if there was none,
// after what time there will be one.
func (q *Quota) take(key string, now time.Time) (left int, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// A request that read the clock first may come second. A limiter would count the time between
	// the two again.
	if now.Before(q.last) {
		now = q.last
	}
	q.last = now
	l, ok := q.by.get(key, now)
	if !ok {
		l = rate.NewLimiter(rate.Limit(q.rate), q.rate)
	}
	if !l.AllowN(now, 1) {
		missing := 1 - l.TokensAt(now)
		return 0, time.Duration(math.Ceil(missing / float64(q.rate) * float64(time.Second)))
	}
	q.by.put(key, l, now)
	return int(l.TokensAt(now)), 0
}

// Admit takes one from key's allowance, or returns an error with a Retry-After. If the
// client has used half of its allowance, h shows what is left
// (draft-ietf-httpapi-ratelimit-headers-11).
func (q *Quota) Admit(h http.Header, key string) error {
	if q == nil {
		return nil
	}
	left, wait := q.take(key, time.Now())
	if left > q.rate/2 {
		return nil
	}
	// The allowance is restored over one second, so that is the window. What is left may
	// be used within the time in which all of it would be restored.
	reset := 1
	if wait > 0 {
		reset = int(math.Ceil(wait.Seconds()))
	}
	h[keyRateLimitPolicy] = []string{`"` + q.name + `";q=` + strconv.Itoa(q.rate) + ";w=1"}
	h[keyRateLimit] = []string{`"` + q.name + `";r=` + strconv.Itoa(left) + ";t=" + strconv.Itoa(reset)}
	if wait == 0 {
		return nil
	}
	return &store.Error{Code: store.RateLimited, Message: "Too many requests, slow down", RetryAfter: wait}
}
