package edge

import (
	"crypto/rand"
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGuessableKeysAreFound(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		"aaaaaaaaaaaaaaaa", "abababababababab", "0123456789abcdef", "fedcba9876543210", "abcdefghijklmnopqrstuvwxyz", "aaaabbbbccccddddeeeeffffgggghhhh",
		"password-password-1", "my-secret-api-key-2026", "takt-admin-key-0123456789", "the-key-of-the-fleet-0123456789", "changeme_changeme", "Passwort-Geheim-1234",
		"k3yk3yp4ssw0rd-ZZk3yk3yp4ssw0rd-ZZ", "correct-horse-battery-staple", "qwertyuiop-asdfgh", "companybuildfarm2026", "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f",
	} {
		require.NotEmpty(t, Guessable(key), key)
	}
	for _, key := range []string{"h7Gk2-pQz9_xWv4T", "Zq8vN3rT5yLk0WmE", "4f9a1c7e2b8d6053", "ci-Zq8vN3rT5yLk0WmE"} {
		require.Empty(t, Guessable(key), key)
	}
}

// What takt makes up, and what openssl or /dev/urandom give, is never taken for guessable.
func TestRandomKeysAreNotGuessable(t *testing.T) {
	t.Parallel()
	raw := make([]byte, 32)
	fits := func(key, what string) {
		if why := Guessable(key); why != "" {
			t.Fatalf("%s %q: %s", what, key, why)
		}
	}
	for range 100_000 {
		_, _ = rand.Read(raw)
		text := base64.RawURLEncoding.EncodeToString(raw)
		fits(text, "one that takt makes")
		fits(string(raw), "an encryption key")
		fits(text[:24], "a short one")
	}
}
