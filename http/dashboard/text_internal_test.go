package dashboard

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextOfStrangersStandsWhereItIs(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a‹U+202E›b", plain("a\u202Eb"))
	require.Equal(t, "␛[31m ␡", plain("\x1b[31m\n\x7f"))
	require.Equal(t, "äöü…", clip(3, "äöüß"))
}
