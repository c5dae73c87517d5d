package settings

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnectionsFitTheFileDescriptors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		need  int
		files uint64
		want  int
	}{
		{40_000, 1 << 20, 40_000}, {40_000, 20_000, 18_976}, {40_000, 1024, 768}, {1024, 4096, 1024}, {1024, 256, 192},
	} {
		require.Equal(t, c.want, ConnectionsFor(c.need, c.files), "%d of %d", c.need, c.files)
	}
}
