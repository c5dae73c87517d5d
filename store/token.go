package store

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"regexp"
)

// TokenHash is the SHA-256 of a build's access token. Only this hash is stored.
type TokenHash [sha256.Size]byte

// HashToken returns the hash of token.
func HashToken(token string) TokenHash { return sha256.Sum256([]byte(token)) }

// IsZero reports whether h means "no token".
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

// NewID returns 21 characters of [A-Za-z0-9_-]. The first is not a dash, because a
// command line would read the id as a flag.
func NewID() string {
	for {
		if id := NewBuildToken()[:21]; id[0] != '-' {
			return id
		}
	}
}

// NewUUID returns a random UUID (RFC 9562, version 4).
func NewUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
