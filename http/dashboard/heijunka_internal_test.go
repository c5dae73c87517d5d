package dashboard

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestHeijunkaIsSummedUpInASentence(t *testing.T) {
	t.Parallel()
	s := store.HeijunkaStatus{Enabled: true, Regulator: store.HeijunkaRegulator{Level: "normal", Load: 12, SoftLimit: 1000, HardLimit: 1200, RegularLimit: 960}}
	nan := float32(math.NaN())
	require.Equal(t, "Normal: 12 requests admitted of at most 1200 (960 for all but workers), critical from 1000 on; nothing refused in the last hour.", summary(s, []float32{nan, 0}))
	s.Regulator.Level = "critical"
	require.Equal(t, "Overloaded: 12 requests admitted of at most 1200 (960 for all but workers), critical from 1000 on; 1 request refused in the last hour.", summary(s, []float32{6, nan}))
	require.Equal(t, "Overloaded: 12 requests admitted of at most 1200 (960 for all but workers), critical from 1000 on; 30 requests refused in the last hour.", summary(s, []float32{120, 60}))
	s.Enabled = false
	require.Contains(t, summary(s, nil), "switched off")
}
