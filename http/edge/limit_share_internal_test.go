package edge

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAddressesStayKnownForAWhile(t *testing.T) {
	t.Parallel()
	k, now := newKnown(), time.Now()
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

	k = newKnown()
	for i := range 3 * quotaKeys {
		k.add(strconv.Itoa(i), now.Add(time.Duration(i)*time.Microsecond))
	}
	require.LessOrEqual(t, len(k.young)+len(k.old), 2*quotaKeys)
	require.True(t, k.has("0", now))
}

func TestShareCutsTheOldestOfTheStrangerThatHoldsMost(t *testing.T) {
	t.Parallel()
	s := NewShare("test", 4, 3)
	var cut []string
	take := func(who string) (*Holder, error) {
		return s.Take(who, false, func(error) { cut = append(cut, who) })
	}
	take1 := func(who string) *Holder {
		h, err := take(who)
		require.NoError(t, err)
		return h
	}
	a1, b1 := take1("a"), take1("b")
	take1("b")
	_, err := s.Take("known", true, nil)
	require.NoError(t, err)
	take1("c")
	require.Equal(t, []string{"b"}, cut)
	s.GiveBack("b", b1) // the request that was cut off ends; its unit is the other's
	require.Equal(t, 4, s.taken)
	s.GiveBack("a", a1)
	take1("b")
	take1("d")
	require.Equal(t, []string{"b", "b"}, cut)
	s.GiveBack("known", nil)
	for range 4 {
		_, err = s.Take("known", true, nil)
		require.NoError(t, err)
	}
	require.Empty(t, s.by, "known addresses have taken all")
	_, err = take("e")
	require.Error(t, err, "and are not cut off")
	_, err = s.Take("known", true, nil)
	require.Error(t, err)
	for range 4 {
		s.GiveBack("known", nil)
	}
	require.Zero(t, s.taken)
	for range 3 {
		take1("f")
	}
	_, err = take("f")
	require.Error(t, err, "an address has its limit")
}
