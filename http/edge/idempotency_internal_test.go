package edge

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{"", "k", " k", "k\x00", "\u00e4", strings.Repeat("~", 255), strings.Repeat("~", 256), "8e03978e-40d5-43dd-bc93-6894a57f9324"} {
		f.Add(key, []byte(`{"id":"b"}`))
	}
	f.Fuzz(func(t *testing.T, key string, body []byte) {
		o, err := ReadOnce(http.Header{"Idempotency-Key": {key}}, "test-api-key-0123456789", "")
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
			return
		}
		require.True(t, len(key) >= 1 && len(key) <= maxIdempotencyKey)
		var compact bytes.Buffer
		if json.Compact(&compact, body) != nil {
			return
		}
		sealed, err := o.Seal(Reply{Status: 201, Body: json.RawMessage(body)})
		require.NoError(t, err)
		r, err := o.Open(sealed)
		require.NoError(t, err)
		require.Equal(t, 201, r.Status)
		replayed, _ := r.Body.(json.RawMessage)
		require.Equal(t, compact.String(), string(replayed))
		another := &Once{"test-api-key-0123456789", key + "x"}
		_, err = another.Open(sealed)
		require.ErrorIs(t, err, errSealed)
	})
}

func FuzzSealedReply(f *testing.F) {
	f.Add([]byte{}, uint16(0), byte(1))
	f.Add(make([]byte, 11), uint16(11), byte(0x80))
	f.Add(make([]byte, 40), uint16(40), byte(0xff))
	o := &Once{"test-api-key-0123456789", "k"}
	f.Fuzz(func(t *testing.T, garbage []byte, at uint16, flip byte) {
		_, err := o.Open(garbage)
		require.ErrorIs(t, err, errSealed)
		sealed, err := o.Seal(Reply{Status: 200, Body: json.RawMessage(`{}`)})
		require.NoError(t, err)
		sealed[int(at)%len(sealed)] ^= flip
		_, err = o.Open(sealed)
		require.Equal(t, flip == 0, err == nil)
	})
}
