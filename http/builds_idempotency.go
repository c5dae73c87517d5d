package http

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
)

// storedOnce returns what the store needs. The reply is sealed before the commit, so that every
// committed submission can be replayed.
func (in *submission) storedOnce(status int, token string) *store.Once {
	return &store.Once{Key: in.once.Digest(), Content: in.content(), Seal: func(b store.Build) ([]byte, error) {
		return in.once.Seal(edge.Reply{Status: status, Body: api.NewSubmitted(b, token)})
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
		Require       string        `json:",omitempty"` // as well as Prefer not there in keys of the release before
		Prefer        string        `json:",omitempty"`
		Inputs        *store.Inputs `json:",omitempty"` // as well
	}{in.platform, in.priority, labels, describe(in.source), describe(in.certs), in.require.String(), in.prefer.String(), in.given()})
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
	r, err := in.once.Open(found.Reply)
	if err != nil {
		return nil, store.Wrap(store.KeyExpired, "The first reply to this Idempotency-Key can no longer be told", err)
	}
	c.Response().Header()[api.HeaderReplayed] = []string{"true"}
	return r, nil
}
