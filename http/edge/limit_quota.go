package edge

import (
	"hash/maphash"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"takt/store"
)

// quotaKeys is how many keys a quota remembers, about 3 MiB. Normal use needs only a few:
// the keys used within the last two seconds.
const quotaKeys = 1 << 16

// Quota limits how often each of many keys may do something: rate times a second, with a
// burst of as many. It is the generic cell rate algorithm (ITU-T I.371). Per key it keeps
// one number, the time at which the key's allowance is whole again. That time is at most
// a second away, so a key that was unused for a second can be forgotten without loss.
type Quota struct {
	name  string
	rate  int
	every time.Duration // the time that one use costs
	seed  maphash.Seed
	epoch time.Time

	mu sync.Mutex // guards what follows
	// young has the keys used since turned, old those used in the period before. The
	// value is when a key's allowance is whole again, since epoch.
	young, old map[uint64]time.Duration
	turned     time.Duration
}

// NewQuota returns a quota of rate a second. If rate is negative it returns nil, which
// admits everything.
func NewQuota(name string, rate int, now time.Time) *Quota {
	if rate < 0 {
		return nil
	}
	return &Quota{
		name: name, rate: rate, every: time.Second / time.Duration(rate), seed: maphash.MakeSeed(), epoch: now,
		young: map[uint64]time.Duration{},
	}
}

// take takes one from key's allowance at time now and reports how many are left. If there
// is none, it returns how long until there is one.
func (q *Quota) take(key string, now time.Time) (left int, wait time.Duration) {
	h, at := maphash.String(q.seed, key), now.Sub(q.epoch)
	q.mu.Lock()
	defer q.mu.Unlock()
	if at-q.turned >= time.Second {
		q.old, q.young, q.turned = q.young, map[uint64]time.Duration{}, at
	}
	whole := max(q.young[h], q.old[h], at) + q.every
	burst := q.every * time.Duration(q.rate)
	if over := whole - at - burst; over > 0 {
		return 0, over
	}
	q.remember(h, whole)
	return int((burst - (whole - at)) / q.every), 0
}

// remember notes when h's allowance is whole again. If there are too many keys, new ones
// are not remembered. They are admitted, because no client may be refused for what others
// do, and a limit would not stop a client that can make up so many keys.
func (q *Quota) remember(h uint64, whole time.Duration) {
	_, young := q.young[h]
	_, old := q.old[h]
	switch {
	case young || len(q.young) < quotaKeys/2:
		q.young[h] = whole
	case old:
		q.old[h] = whole
	}
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
