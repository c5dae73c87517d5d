package edge

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAddressesStayKnownForAWhile(t *testing.T) {
	t.Parallel()
	k, now := newKnown(knownFor), time.Now()
	require.False(t, k.has("a", now))
	k.add("a", now)
	k.add("b", now.Add(time.Minute))
	for _, later := range []time.Duration{0, knownFor - 1, 2*knownFor - 1} {
		require.True(t, k.has("a", now.Add(later)), "%s later", later)
	}
	require.False(t, k.has("a", now.Add(2*knownFor)), "nobody was added meanwhile")

	k.add("c", now.Add(knownFor)) // a and b are old from here on
	require.True(t, k.has("b", now.Add(2*knownFor-1)))
	require.False(t, k.has("b", now.Add(2*knownFor)))
	require.True(t, k.has("c", now.Add(2*knownFor)))
	k.add("d", now.Add(3*knownFor)) // nobody was added for so long that c is forgotten
	require.False(t, k.has("c", now.Add(3*knownFor)))

	k = newKnown(knownFor)
	for i := range 3 * maxKeys {
		k.add(strconv.Itoa(i), now.Add(time.Duration(i)*time.Microsecond))
	}
	require.LessOrEqual(t, len(k.by.young)+len(k.by.old), maxKeys)
	require.True(t, k.has("0", now))
}
