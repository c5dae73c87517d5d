package store_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func FuzzValidID(f *testing.F) {
	for _, id := range []string{"", "a", "-", "V1StGXR8_Z5jdHi6B-myT", "../x", "a\n", "a\x00", "ä", "\u212a", strings.Repeat("a", 64), strings.Repeat("a", 65)} {
		f.Add(id)
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	f.Fuzz(func(t *testing.T, id string) {
		want := id != "" && len(id) <= store.MaxIDLength && strings.Trim(id, alphabet) == ""
		for _, c := range []byte(id) {
			want = want && strings.IndexByte(alphabet, c) >= 0
		}
		require.Equal(t, want, store.ValidID(id))
	})
}
