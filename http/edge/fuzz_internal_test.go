package edge

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func FuzzContentDigest(f *testing.F) {
	for _, h := range []string{"", "sha-256=:AAAA:", "sha-256=::", "sha-512=:AA:, sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:", "sha-256", ",,=", "sha-256=:\n:"} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, h string) {
		sum, err := ContentDigest(h)
		require.True(t, err != nil || sum == nil || len(sum) == sha256.Size)
	})
}

// FuzzQuota takes from a few keys at times that may also go back, as clocks of
// two readers do.
func FuzzQuota(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 255, 3}, uint8(10))
	f.Add(append(make([]byte, 40), bytes.Repeat([]byte{200, 0, 0, 0, 0, 0, 0, 0}, 10)...), uint8(9))
	f.Fuzz(func(t *testing.T, steps []byte, rate uint8) {
		begin := time.Now()
		q := NewQuota("q", int(rate)+1)
		var admitted [4]int
		last := time.Duration(0)
		for i, b := range steps {
			at := time.Duration(b) * time.Millisecond
			last = max(last, at)
			key := i % len(admitted)
			if _, wait := q.take(fmt.Sprint(key), begin.Add(at)); wait == 0 {
				admitted[key]++
			}
		}
		for _, n := range admitted {
			most := float64(int(rate)+1) * (1 + last.Seconds())
			require.LessOrEqual(t, float64(n), most+1)
		}
	})
}
