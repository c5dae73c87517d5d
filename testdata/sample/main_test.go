package main

import "testing"

// TestCount compares the sieve with trial division, which takes a moment: the
// worker runs it before it builds.
func TestCount(t *testing.T) {
	const limit = 3_000_000
	want := 0
	for i := 2; i < limit; i++ {
		prime := true
		for j := 2; j*j <= i; j++ {
			if i%j == 0 {
				prime = false
				break
			}
		}
		if prime {
			want++
		}
	}
	if got := Count(limit); got != want {
		t.Fatalf("Count(%d) = %d, trial division says %d", limit, got, want)
	}
}
