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

func FuzzWorkerToken(f *testing.F) {
	f.Add("")
	f.Add("short")
	f.Add(store.NewWorkerToken())
	f.Add("\xff\x00ä\u2028family")
	f.Fuzz(func(t *testing.T, token string) {
		h := store.HashToken(token)
		require.True(t, h.Equal(store.HashToken(token)))
		require.Equal(t, h.Family(), store.HashToken(store.TokenFamily(token)).Family())
		next := store.NextWorkerToken(token)
		require.Len(t, next, 32)
		require.NotEqual(t, token, next)
		if len(token) >= 8 {
			require.Equal(t, h.Family(), store.HashToken(next).Family(), "its row is found by it")
		}
	})
}
