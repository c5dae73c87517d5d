package heijunka

import "time"

// buckets is how finely a window forgets.
const buckets = 12

// window sums up what ended within the last while.
type window struct {
	width time.Duration // of one bucket
	at    int64         // number of the current bucket
	sums  [buckets]sums
}

type sums struct {
	ended, failed int64
	latency       time.Duration
}

func newWindow(length time.Duration) window { return window{width: max(length/buckets, 1)} }

// turn forgets what is too old at now.
func (w *window) turn(now time.Duration) {
	at := int64(now / w.width)
	if at-w.at >= buckets {
		w.sums, w.at = [buckets]sums{}, at
		return
	}
	for w.at < at {
		w.at++
		w.sums[w.at%buckets] = sums{}
	}
}

// add notes a request that ended at now.
func (w *window) add(now, latency time.Duration, failed bool) {
	w.turn(now)
	s := &w.sums[w.at%buckets]
	s.ended++
	s.latency += latency
	if failed {
		s.failed++
	}
}

// read returns the mean latency and the share of failures.
func (w *window) read(now time.Duration) (latency time.Duration, errors float64) {
	w.turn(now)
	var all sums
	for _, s := range w.sums {
		all.ended += s.ended
		all.failed += s.failed
		all.latency += s.latency
	}
	if all.ended == 0 {
		return 0, 0
	}
	return all.latency / time.Duration(all.ended), float64(all.failed) / float64(all.ended)
}
