package dashboard

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestHeijunkaIsSummedUpInASentence(t *testing.T) {
	t.Parallel()
	s := store.HeijunkaStatus{Enabled: true, Regulator: store.HeijunkaRegulator{Level: "normal", Load: 12, SoftLimit: 1000}}
	nan := float32(math.NaN())
	require.Equal(t, "Normal: 12 of 1000 admitted, nothing refused in the last hour.", summary(s, []float32{nan, 0}))
	s.Regulator.Level = "critical"
	require.Equal(t, "Overloaded: 12 of 1000 admitted, 1 request refused in the last hour.", summary(s, []float32{6, nan}))
	require.Equal(t, "Overloaded: 12 of 1000 admitted, 30 requests refused in the last hour.", summary(s, []float32{120, 60}))
	s.Enabled = false
	require.Contains(t, summary(s, nil), "switched off")
}
