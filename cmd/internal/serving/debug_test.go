package serving

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheRecentLogIsBounded(t *testing.T) {
	t.Parallel()
	r := new(recentLog)
	for i := range recentLines + 2 {
		_, err := r.Write([]byte(strings.Repeat("x", i)))
		require.NoError(t, err)
	}
	_, err := r.Write(bytes.Repeat([]byte("y"), 2*recentBytes))
	require.NoError(t, err)
	lines := r.all()
	require.Len(t, lines, recentLines)
	require.Len(t, lines[0], 3)
	require.Equal(t, strings.Repeat("y", recentBytes), lines[recentLines-1])
}
