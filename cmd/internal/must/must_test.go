package must_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/must"
)

func TestTryReturnsWhatFailed(t *testing.T) {
	t.Parallel()
	wrong := errors.New("wrong")
	require.NoError(t, must.Try(func() { require.Equal(t, 1, must.Get(1, nil)) }))
	require.ErrorIs(t, must.Try(func() { must.Get(1, wrong) }), wrong)
	require.ErrorIs(t, must.Beside(func() { must.Do(wrong) })(), wrong)
	require.PanicsWithValue(t, "a fault of the program", func() { _ = must.Try(func() { panic("a fault of the program") }) })
	var called [10]bool
	require.ErrorIs(t, must.Spread(3, len(called), func(i int) {
		if called[i] = true; i == 9 {
			must.Do(wrong)
		}
	}), wrong)
	require.NotContains(t, called[:], false)
}
