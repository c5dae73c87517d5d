package http

import (
	"hash/maphash"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"takt/store"
)

// quotaKeys is how many keys a quota remembers, about 3 MiB. An honest fleet has
// a few: those that used theirs within the last two seconds.
const quotaKeys = 1 << 16

// quota limits how often each of many keys may do something: rate times a
// second, and as many at once. It is the generic cell rate algorithm (ITU-T
// I.371): of a key it keeps one number, the time at which its allowance is
// whole again. That is at most a second away, so a key that rests for a second
// is as good as unknown, and forgetting it loses nothing.
type quota struct {
	name  string
	rate  int
	every time.Duration // what one costs
	seed  maphash.Seed
	epoch time.Time

	mu sync.Mutex // guards what follows
	// young has the keys that were used since turned, old those of at least a
	// second before. The value is when a key's allowance is whole again, since epoch.
	young, old map[uint64]time.Duration
	turned     time.Duration
}

// newQuota returns a quota of rate a second; nil, which admits everything, if
// rate is negative.
func newQuota(name string, rate int, now time.Time) *quota {
	if rate < 0 {
		return nil
	}
	return &quota{
		name: name, rate: rate, every: time.Second / time.Duration(rate), seed: maphash.MakeSeed(), epoch: now,
		young: map[uint64]time.Duration{},
	}
}

// take takes one from key's allowance at time now, and reports how many are
// left; or, if there is none, how long until there is.
func (q *quota) take(key string, now time.Time) (left int, wait time.Duration) {
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

// remember notes when h's allowance is whole again. If there are too many keys, new
// ones are not remembered: nobody is refused for others' sake, and whoever can make
// up so many keys is not limited anyway.
func (q *quota) remember(h uint64, whole time.Duration) {
	_, young := q.young[h]
	_, old := q.old[h]
	switch {
	case young || len(q.young) < quotaKeys/2:
		q.young[h] = whole
	case old:
		q.old[h] = whole
	}
}

// admit takes one from key's allowance, or returns the error that says when to
// come back. A client that has used half of its allowance is shown in h what it
// has (draft-ietf-httpapi-ratelimit-headers-11); the others need not know.
func (q *quota) admit(h http.Header, key string) error {
	if q == nil {
		return nil
	}
	left, wait := q.take(key, time.Now())
	if left > q.rate/2 {
		return nil
	}
	// What is used comes back over one second, so that is the window; what is
	// left may be used within the time in which it would all be back.
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
