package hubspot

import (
	"net/http"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func FuzzAnswer(f *testing.F) {
	f.Add(429, "7", "0", "10000", []byte(`{"message":"You have reached your ten_secondly_rolling limit.","policyName":"TEN_SECONDLY_ROLLING"}`))
	f.Add(429, "Wed, 21 Oct 2026 07:28:00 GMT", "-1", "x", []byte(`<html>`))
	f.Add(403, "NaN", "", "", []byte(`<html><body>Access denied. Ray ID: 7</body></html>`))
	f.Add(477, "1e300", "99999999999999999999", "1", []byte(`{"message":7}`))
	f.Add(204, "-5", "3", "1000", []byte(nil))
	f.Add(500, "0x10", "", "", []byte("{\"message\":\"a\\u0000\\nb\xff\"}"))
	f.Fuzz(func(t *testing.T, status int, after, remaining, interval string, body []byte) {
		h := http.Header{}
		h.Set("retry-after", after)
		h.Set("x-hubspot-ratelimit-remaining", remaining)
		h.Set("x-hubspot-ratelimit-interval-milliseconds", interval)
		a := newAnswer(status, h, body)
		for _, d := range []time.Duration{a.RetryAfter, a.Pause()} {
			require.GreaterOrEqual(t, d, time.Duration(0))
			require.LessOrEqual(t, d, 24*time.Hour)
		}
		require.GreaterOrEqual(t, a.Remaining, -1)
		require.LessOrEqual(t, a.Interval, time.Hour)
		require.NotEmpty(t, a.Kind().String())
		require.True(t, utf8.ValidString(a.String()))
		require.NotContains(t, a.String(), "\n")
		require.Less(t, len(a.String()), 300)
		require.Equal(t, a.OK(), a.Kind() == Done)
	})
}
