package store

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"regexp"
)

// TokenHash is what is stored of a token; tokens themselves never are. Its first
// 8 bytes are those of the SHA-256 of the token's family, its other 24 those of
// the SHA-256 of the whole token.
//
// Why not one digest: a worker's token changes with every poll. An index on
// something that changes with every poll makes each of them a cold update with
// dead index entries; the family stays, so the index on it is never touched.
type TokenHash [sha256.Size]byte

// familyChars is the length of a token's family: its first characters, 48 bits.
// The rest keeps at least 144 random bits.
const familyChars = 8

// HashToken returns the hash of token.
func HashToken(token string) TokenHash {
	family := sha256.Sum256([]byte(TokenFamily(token)))
	whole := sha256.Sum256([]byte(token))
	var h TokenHash
	copy(h[:8], family[:8])
	copy(h[8:], whole[:24])
	return h
}

// TokenFamily is the part of a worker's token that survives rotation. It is a
// secret as the token is.
func TokenFamily(token string) string { return token[:min(familyChars, len(token))] }

// Family is the part of h by which its row is found.
func (h TokenHash) Family() int64 {
	return int64(binary.BigEndian.Uint64(h[:8]))
}

// IsZero reports whether h stands for "no token".
func (h TokenHash) IsZero() bool { return h == TokenHash{} }

// Equal compares in constant time.
func (h TokenHash) Equal(o TokenHash) bool { return subtle.ConstantTimeCompare(h[:], o[:]) == 1 }

// NewBuildToken returns a build access token: 32 random bytes, base64url
// without padding, 43 characters.
func NewBuildToken() string { return randomToken(32) }

// NewWorkerToken returns a worker token: 24 random bytes, 32 characters of
// [A-Za-z0-9_-].
func NewWorkerToken() string { return randomToken(24) }

// NextWorkerToken returns a worker token that may succeed token: as
// NewWorkerToken, but of the same family, so that rotation is cheap. A token
// that is too short has no family and its successor a new one.
func NextWorkerToken(token string) string {
	next := NewWorkerToken()
	if len(token) < familyChars {
		return next
	}
	return token[:familyChars] + next[familyChars:]
}

func randomToken(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the process instead
	return base64.RawURLEncoding.EncodeToString(b)
}

// MaxIDLength is the longest id that a client may choose, in characters.
const MaxIDLength = 64

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidID reports whether id may name a build or a worker: 1 to MaxIDLength
// characters of [A-Za-z0-9_-].
func ValidID(id string) bool { return idPattern.MatchString(id) }
