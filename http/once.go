package http

import (
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/storage"
	"takt/store"
	"takt/store/seal"
)

// maxIdempotencyKey is the longest Idempotency-Key, in characters.
const maxIdempotencyKey = 255

// once is a submission with an Idempotency-Key. Its stored reply contains the build's
// token, so it is sealed: it can be opened only with the Idempotency-Key and the API key
// together. The database has only a digest of the Idempotency-Key.
type once struct{ apiKey, key string }

// firstReply is the sealed content.
type firstReply struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// readOnce reads the Idempotency-Key; nil if there is none.
func readOnce(h http.Header, apiKey string) (*once, error) {
	values, present := h[http.CanonicalHeaderKey(api.HeaderIdempotencyKey)]
	if !present {
		return nil, nil //nolint:nilnil // without a key there is nothing to do
	}
	if len(values) != 1 || !validIdempotencyKey(values[0]) {
		return nil, invalid("Idempotency-Key must be 1 to 255 visible characters")
	}
	return &once{apiKey, values[0]}, nil
}

func validIdempotencyKey(key string) bool {
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return false
		}
	}
	return key != "" && len(key) <= maxIdempotencyKey
}

func (o *once) digest() [sha256.Size]byte { return sha256.Sum256([]byte(o.key)) }

var errSealed = errors.New("sealed under another API key, or damaged")

// cipher returns the cipher for replies under this Idempotency-Key and the API key.
func (o *once) cipher() cipher.AEAD {
	return seal.Cipher([]byte(o.apiKey), []byte(o.key), "takt idempotent reply")
}

// seal returns r sealed and bound to the Idempotency-Key's digest.
func (o *once) seal(r firstReply) ([]byte, error) {
	plain, err := marshal(r)
	if err != nil {
		return nil, err
	}
	sum := o.digest()
	return o.cipher().Seal(nil, nil, plain, sum[:]), nil //nolint:gosec // the cipher makes its own nonce
}

func (o *once) open(sealed []byte) (r firstReply, err error) {
	sum := o.digest()
	plain, err := o.cipher().Open(nil, nil, sealed, sum[:])
	if err != nil {
		return r, errSealed
	}
	return r, json.Unmarshal(plain, &r)
}

// of returns what the store needs. The reply is sealed before the commit, so that every
// committed submission can be replayed.
func (o *once) of(in *submission, status int, token string) *store.Once {
	return &store.Once{Key: o.digest(), Content: in.content(), Seal: func(b store.Build) ([]byte, error) {
		body, err := marshal(api.NewSubmitted(b, token))
		if err != nil {
			return nil, err
		}
		return o.seal(firstReply{Status: status, Body: body})
	}}
}

// content is a digest of all that must be equal in a repeated submission.
func (in *submission) content() [sha256.Size]byte {
	type file struct {
		Size   int64
		SHA256 string
	}
	describe := func(u *storage.Upload) *file {
		if u == nil {
			return nil
		}
		return &file{u.Size, hex.EncodeToString(u.SHA256[:])}
	}
	labels := in.labels
	if len(labels) == 0 {
		labels = nil
	}
	b, err := json.Marshal(struct {
		Platform      store.Platform
		Priority      int
		Labels        store.Labels // ordered by name
		Source, Certs *file
	}{in.platform, in.priority, labels, describe(in.source), describe(in.certs)})
	if err != nil {
		panic(err) // impossible: strings and numbers
	}
	return sha256.Sum256(b)
}

// replay answers a repeated submission with its first reply. The caller discards what was
// just uploaded.
func (in *submission) replay(c echo.Context, found *store.Repeated) (any, error) {
	if found.Content != in.content() {
		return nil, store.NewError(store.KeyMismatch, "Idempotency-Key was used for another submission")
	}
	r, err := in.once.open(found.Reply)
	if err != nil {
		return nil, store.Wrap(store.KeyExpired, "The first reply to this Idempotency-Key can no longer be told", err)
	}
	h := c.Response().Header()
	h[api.HeaderReplayed] = []string{strconv.FormatBool(true)}
	return answer{r.Status, r.Body}, nil
}
