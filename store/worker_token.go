package store

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
	"sync/atomic"
	"time"
)

// WorkerToken is the content of a worker's token after the token was checked.
type WorkerToken struct {
	// Worker is the worker's number; 0 means "no token".
	Worker uint32
	// Counter grows from token to token of a worker; 48 bits.
	Counter uint64
}

const (
	// tokenClaims is how many bytes of a token are not its MAC: the worker's number
	// (4), the counter (6) and the time of its end (4, Unix seconds).
	tokenClaims = 14
	// tokenBytes is the size of a token, which base64url makes 32 characters. Its
	// last 10 bytes are HMAC-SHA-256 (RFC 2104), truncated to 80 bits.
	tokenBytes = 24
	// maxAhead is how much later than any token issued now a token may expire, because
	// the clocks of controllers differ a little.
	maxAhead = time.Minute
)

// WorkerTokenTTL is how long a worker's token is valid.
const WorkerTokenTTL = 90 * time.Second

// WorkerTokens issues and checks the tokens of workers. No token is stored, because it
// is signed and its counter is compared with the worker's row. Safe for concurrent use.
// It issues and accepts nothing before Learn was called once.
type WorkerTokens struct {
	ttl     time.Duration
	secrets [][]byte // the current key first
	known   atomic.Pointer[tokenKeys]
}

// tokenKeys are the keys of one installation, and its clock.
type tokenKeys struct {
	installation string
	macs         []*sync.Pool // of hash.Hash, in the order of secrets
	at           time.Time    // a time of the local monotonic clock
	then         time.Time    // the database's clock at the same time
}

func (k *tokenKeys) now() time.Time { return k.then.Add(time.Since(k.at)) }

// NewWorkerTokens returns tokens that are valid for ttl. They are signed under the
// first of the secrets and checked under all.
func NewWorkerTokens(ttl time.Duration, secrets ...[]byte) *WorkerTokens {
	return &WorkerTokens{ttl: ttl, secrets: secrets}
}

// Learn sets the id of this installation and the database's current time. The id makes
// tokens of other installations with the same secrets invalid.
func (t *WorkerTokens) Learn(installation string, now time.Time) error {
	next := &tokenKeys{installation: installation, at: time.Now(), then: now}
	if old := t.known.Load(); old != nil && old.installation == installation {
		next.macs = old.macs
	} else {
		for _, secret := range t.secrets {
			key, err := hkdf.Key(sha256.New, secret, []byte(installation), "takt worker token", sha256.Size)
			if err != nil {
				return fmt.Errorf("deriving the key of worker tokens: %w", err)
			}
			next.macs = append(next.macs, &sync.Pool{New: func() any { return hmac.New(sha256.New, key) }})
		}
	}
	t.known.Store(next)
	return nil
}

// Ready returns an Unavailable error before Learn.
func (t *WorkerTokens) Ready() error {
	if t.known.Load() != nil {
		return nil
	}
	return &Error{Code: Unavailable, Message: "Database unavailable, try again later", RetryAfter: time.Second, Err: errTokensUnknown}
}

// Issue returns a token of a worker that is valid for ttl from now; "" before Learn.
func (t *WorkerTokens) Issue(w WorkerToken) string {
	k := t.known.Load()
	if k == nil {
		return ""
	}
	var b [tokenBytes]byte
	binary.BigEndian.PutUint64(b[2:], w.Counter) // its two high bytes are overwritten
	binary.BigEndian.PutUint32(b[:], w.Worker)
	binary.BigEndian.PutUint32(b[10:], uint32(k.now().Add(t.ttl).Unix()))
	sign(b[tokenClaims:], k.macs[0], b[:tokenClaims])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// sign puts the first bytes of the MAC of claims into mac.
func sign(mac []byte, pool *sync.Pool, claims []byte) {
	h := pool.Get().(hash.Hash) // the pool holds nothing else
	h.Reset()
	h.Write(claims)
	var sum [sha256.Size]byte
	copy(mac, h.Sum(sum[:0]))
	pool.Put(h)
}

var errTokensUnknown = errors.New("the installation has not been read yet")

// Check returns the content of token. It does not check whether the token was
// superseded: only the worker's row says that. Errors: InvalidToken if token is
// malformed, was not signed here or has expired; Unavailable before Learn.
func (t *WorkerTokens) Check(token string) (WorkerToken, error) {
	k := t.known.Load()
	if k == nil {
		return WorkerToken{}, t.Ready()
	}
	var b [tokenBytes]byte
	if len(token) != base64.RawURLEncoding.EncodedLen(tokenBytes) {
		return WorkerToken{}, ErrInvalidToken()
	}
	if _, err := base64.RawURLEncoding.Strict().Decode(b[:], []byte(token)); err != nil {
		return WorkerToken{}, ErrInvalidToken()
	}
	genuine := false
	for _, pool := range k.macs {
		var mac [tokenBytes - tokenClaims]byte
		sign(mac[:], pool, b[:tokenClaims])
		genuine = hmac.Equal(mac[:], b[tokenClaims:]) || genuine
	}
	now, ends := k.now(), time.Unix(int64(binary.BigEndian.Uint32(b[10:])), 0)
	if !genuine || now.After(ends) || ends.After(now.Add(t.ttl+maxAhead)) {
		return WorkerToken{}, ErrInvalidToken()
	}
	w := WorkerToken{Worker: binary.BigEndian.Uint32(b[:]), Counter: binary.BigEndian.Uint64(b[2:]) & (1<<48 - 1)}
	return w, nil
}

// ErrInvalidToken returns the answer to a worker token that is not valid.
func ErrInvalidToken() error { return NewError(InvalidToken, "Invalid worker token") }
