package serving

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSmallHeapsGetHeadroomAndLargeOnesGoOwnPace(t *testing.T) {
	t.Parallel()
	require.Equal(t, 2400, percentFor(0))
	require.Equal(t, 600, percentFor(4<<20))
	require.Equal(t, 300, percentFor(8<<20))
	require.Equal(t, 100, percentFor(24<<20))
	require.Equal(t, 100, percentFor(1<<30))
}
