package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// Whatever is sent as a cursor is one of the list, with texts that PostgreSQL takes, or
// refused.
func FuzzCursor(f *testing.F) {
	for _, c := range []store.Cursor{store.NewCursor("l", 7, "é\x00"), store.NewCursor("l", 1<<62, ""), store.NewCursor("m", 7, "x"), "", "W10", "%"} {
		f.Add(string(c))
	}
	f.Fuzz(func(t *testing.T, sent string) {
		var n int64
		var s string
		if err := store.Cursor(sent).Keys("l", &n, &s); err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
			return
		}
		require.Equal(t, store.Text(s), s)
		var n2 int64
		var s2 string
		require.NoError(t, store.NewCursor("l", n, s).Keys("l", &n2, &s2))
		require.Equal(t, []any{n, s}, []any{n2, s2})
	})
}
