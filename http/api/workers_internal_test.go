package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUptimeHasTwoUnits(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 999 * time.Millisecond: "0s", 45 * time.Second: "45s", 59 * time.Second: "59s",
		time.Minute: "1m 0s", 23*time.Minute + 45*time.Second: "23m 45s", time.Hour: "1h 0m",
		5*time.Hour + 23*time.Minute + 59*time.Second: "5h 23m", 24 * time.Hour: "1d 0h", 86*time.Hour + 59*time.Minute: "3d 14h",
		400 * 24 * time.Hour: "400d 0h",
	} {
		require.Equal(t, want, uptime(d))
	}
}
