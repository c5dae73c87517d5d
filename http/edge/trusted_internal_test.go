package edge

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAddressesStayKnownForAWhile(t *testing.T) {
	t.Parallel()
	k, now := newTrusted(trustedFor), time.Now()
	require.False(t, k.has("a", now))
	k.add("a", now)
	k.add("b", now.Add(time.Minute))
	for _, later := range []time.Duration{0, trustedFor - 1, 2*trustedFor - 1} {
		require.True(t, k.has("a", now.Add(later)), "%s later", later)
	}
	require.False(t, k.has("a", now.Add(2*trustedFor)), "nobody was added meanwhile")

	k.add("c", now.Add(trustedFor)) // a and b are old from here on
	require.True(t, k.has("b", now.Add(2*trustedFor-1)))
	require.False(t, k.has("b", now.Add(2*trustedFor)))
	require.True(t, k.has("c", now.Add(2*trustedFor)))
	k.add("d", now.Add(3*trustedFor)) // nobody was added for so long that c is forgotten
	require.False(t, k.has("c", now.Add(3*trustedFor)))

	k = newTrusted(trustedFor)
	for i := range 3 * maxKeys {
		k.add(strconv.Itoa(i), now.Add(time.Duration(i)*time.Microsecond))
	}
	require.LessOrEqual(t, len(k.by.young)+len(k.by.old), maxKeys)
	require.True(t, k.has("0", now))
}
