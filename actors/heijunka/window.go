package heijunka

import "time"

const (
	// A window has this many buckets of this width: a minute in all.
	buckets = 12
	width   = 5 * time.Second
)

// window sums up the requests that ended within the last minute.
type window [buckets]struct {
	slot          int64 // since 1970, in widths
	ended, failed int64
	latency       time.Duration
}

// add records a request that ended at now.
func (w *window) add(now time.Time, latency time.Duration, failed bool) {
	slot := now.UnixNano() / int64(width)
	b := &w[slot%buckets]
	if b.slot != slot {
		b.slot, b.ended, b.failed, b.latency = slot, 0, 0, 0
	}
	b.ended++
	b.latency += latency
	if failed {
		b.failed++
	}
}

// read returns the mean latency and the share of failures.
func (w *window) read(now time.Time) (latency time.Duration, errors float64) {
	slot, ended, failed := now.UnixNano()/int64(width), int64(0), int64(0)
	for _, b := range w {
		if slot-b.slot < buckets {
			ended += b.ended
			failed += b.failed
			latency += b.latency
		}
	}
	if ended == 0 {
		return 0, 0
	}
	return latency / time.Duration(ended), float64(failed) / float64(ended)
}
