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

// quota limits how often each of many keys may do something: rate times a
// second, and as many at once. It is the generic cell rate algorithm (ITU-T
// I.371): of a key it keeps one number, the time at which its allowance is
// whole again. Once that has passed the key is as good as unknown, so forgetting
// it loses nothing.
type quota struct {
	name  string
	rate  int
	every time.Duration // what one costs
	seed  maphash.Seed
	epoch time.Time
	// most is how many keys a shard remembers at most.
	most   int
	shards [quotaShards]quotaShard
}

const (
	// quotaShards is how many locks there are, so that polls don't wait for each
	// other.
	quotaShards = 32
	// quotaKeys is how many keys are remembered at once, about 3 MiB. An honest
	// fleet has a few: those that used theirs within the last second.
	quotaKeys = 1 << 16
	// sweepPause is the time between two sweeps of one shard at least: while more
	// keys are busy than it has room for, sweeping doesn't help.
	sweepPause = 50 * time.Millisecond
)

type quotaShard struct {
	mu sync.Mutex
	// whole is when a key's allowance is whole again, since epoch. Guarded by mu.
	whole map[uint64]time.Duration
	// sweepAt is the size at which the keys that rest are forgotten, sweepAfter
	// the time before which it isn't worth it.
	sweepAt    int
	sweepAfter time.Duration
	_          [32]byte // a cache line of its own
}

// newQuota returns a quota of rate a second; nil, which admits everything, if
// rate is negative.
func newQuota(name string, rate int, now time.Time) *quota {
	if rate < 0 {
		return nil
	}
	q := &quota{
		name: name, rate: rate, every: time.Second / time.Duration(rate), seed: maphash.MakeSeed(), epoch: now,
		most: quotaKeys / quotaShards,
	}
	for i := range q.shards {
		q.shards[i] = quotaShard{whole: map[uint64]time.Duration{}, sweepAt: 64}
	}
	return q
}

// take takes one from key's allowance at time now, and reports how many are
// left; or, if there is none, how long until there is.
func (q *quota) take(key string, now time.Time) (left int, wait time.Duration) {
	h := maphash.String(q.seed, key)
	at := now.Sub(q.epoch)
	s := &q.shards[h%quotaShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	whole, known := s.whole[h]
	whole = max(whole, at) + q.every
	burst := q.every * time.Duration(q.rate)
	if over := whole - at - burst; over > 0 {
		return 0, over
	}
	if !known {
		s.makeRoom(at, q.most)
	}
	s.whole[h] = whole
	return int((burst - (whole - at)) / q.every), 0
}

// makeRoom forgets the keys that rest, from time to time, and if too many don't,
// one that rests soonest among a few: who asks most is remembered longest, and
// nobody is refused for others' sake.
func (s *quotaShard) makeRoom(at time.Duration, most int) {
	if len(s.whole) >= s.sweepAt && at >= s.sweepAfter {
		for k, whole := range s.whole {
			if whole <= at {
				delete(s.whole, k)
			}
		}
		s.sweepAt, s.sweepAfter = min(max(64, 2*len(s.whole)), most), at+sweepPause
	}
	if len(s.whole) < most {
		return
	}
	var victim uint64
	soonest, seen := time.Duration(math.MaxInt64), 0
	for k, whole := range s.whole {
		if whole < soonest {
			victim, soonest = k, whole
		}
		if seen++; seen == 8 {
			break
		}
	}
	delete(s.whole, victim)
}

// admit takes one from key's allowance, or returns the error that says when to
// come back. A client that has used half of its allowance is told in h what it
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
	reset := int(math.Ceil(wait.Seconds()))
	if wait == 0 {
		reset = 1
	}
	h[keyRateLimitPolicy] = []string{`"` + q.name + `";q=` + strconv.Itoa(q.rate) + ";w=1"}
	h[keyRateLimit] = []string{`"` + q.name + `";r=` + strconv.Itoa(left) + ";t=" + strconv.Itoa(reset)}
	if wait == 0 {
		return nil
	}
	return &store.Error{Code: store.RateLimited, Message: "Too many requests, slow down", RetryAfter: wait}
}
