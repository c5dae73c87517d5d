package edge

import (
	"crypto/cipher"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"

	"takt/http/api"
	"takt/store/seal"
)

// maxIdempotencyKey is the longest Idempotency-Key, in characters.
const maxIdempotencyKey = 255

// Once is a request with an Idempotency-Key. Its stored reply contains secrets, so it is
// sealed: it can be opened only with the Idempotency-Key and the API key
// together. The database has only a digest of the Idempotency-Key.
type Once struct{ apiKey, key string }

// ReadOnce returns the Idempotency-Key of a request; nil if it has none. name is that of the
// request's named key, "" for the API key; each has Idempotency-Keys of its own.
func ReadOnce(h http.Header, apiKey, name string) (*Once, error) {
	values, present := h[http.CanonicalHeaderKey(api.HeaderIdempotencyKey)]
	if !present {
		return nil, nil // without a key there is nothing to do
	}
	if len(values) != 1 || !validIdempotencyKey(values[0]) {
		return nil, Invalid("Idempotency-Key must be 1 to 255 visible characters")
	}
	key := values[0]
	if name != "" {
		key = name + "\x00" + key
	}
	return &Once{apiKey, key}, nil
}

func validIdempotencyKey(key string) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return key != "" && len(key) <= maxIdempotencyKey
}

// Digest returns the SHA-256 of the Idempotency-Key, which is stored in the database.
func (o *Once) Digest() [sha256.Size]byte { return sha256.Sum256([]byte(o.key)) }

var errSealed = errors.New("sealed under another API key, or damaged")

// cipher returns the cipher for replies under this Idempotency-Key and the API key.
func (o *Once) cipher() cipher.AEAD {
	return seal.Cipher([]byte(o.apiKey), []byte(o.key), "takt idempotent reply")
}

// Seal returns r sealed and bound to the Idempotency-Key's digest.
func (o *Once) Seal(r Reply) ([]byte, error) {
	plain, err := Marshal(r)
	if err != nil {
		return nil, err
	}
	sum := o.Digest()
	return o.cipher().Seal(nil, nil, plain, sum[:]), nil //nolint:gosec // the cipher makes its own nonce
}

// Open opens what Seal has sealed. The body is as it was sent.
func (o *Once) Open(sealed []byte) (Reply, error) {
	sum, body := o.Digest(), json.RawMessage{}
	plain, err := o.cipher().Open(nil, nil, sealed, sum[:])
	if err != nil {
		return Reply{}, errSealed
	}
	r := Reply{Body: &body}
	err = json.Unmarshal(plain, &r)
	r.Body = body
	return r, err
}
