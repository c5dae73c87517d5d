package store

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"regexp"
)

// TokenHash is the SHA-256 of a build's access token, which is all that is stored
// of it.
type TokenHash [sha256.Size]byte

// HashToken returns the hash of token.
func HashToken(token string) TokenHash { return sha256.Sum256([]byte(token)) }

// IsZero reports whether h stands for "no token".
func (h TokenHash) IsZero() bool { return h == TokenHash{} }

// Equal compares in constant time.
func (h TokenHash) Equal(o TokenHash) bool { return subtle.ConstantTimeCompare(h[:], o[:]) == 1 }

// NewBuildToken returns a build access token: 32 random bytes, base64url
// without padding, 43 characters.
func NewBuildToken() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the process instead
	return base64.RawURLEncoding.EncodeToString(b)
}

// MaxIDLength is the longest id that a client may choose, in characters.
const MaxIDLength = 64

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidID reports whether id may name a build or a worker: 1 to MaxIDLength
// characters of [A-Za-z0-9_-].
func ValidID(id string) bool { return idPattern.MatchString(id) }
