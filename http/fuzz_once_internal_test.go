package http

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/store"
)

func bareServer(tb testing.TB) *Server {
	tb.Helper()
	s, err := New(Deps{Logger: zerolog.Nop()}, Config{APIKey: testKey})
	require.NoError(tb, err)
	return s
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{"", "k", " k", "k\x00", "\u00e4", strings.Repeat("~", 255), strings.Repeat("~", 256), "8e03978e-40d5-43dd-bc93-6894a57f9324"} {
		f.Add(key, []byte(`{"id":"b"}`))
	}
	f.Fuzz(func(t *testing.T, key string, body []byte) {
		o, err := readOnce(http.Header{"Idempotency-Key": {key}}, testKey)
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
			return
		}
		require.True(t, len(key) >= 1 && len(key) <= maxIdempotencyKey)
		var compact bytes.Buffer
		if json.Compact(&compact, body) != nil {
			return
		}
		sealed, err := o.seal(firstReply{Status: 201, Body: body})
		require.NoError(t, err)
		r, err := o.open(sealed)
		require.NoError(t, err)
		require.Equal(t, 201, r.Status)
		require.Equal(t, compact.String(), string(r.Body))
		another := &once{testKey, key + "x"}
		_, err = another.open(sealed)
		require.ErrorIs(t, err, errSealed)
	})
}

func FuzzSealedReply(f *testing.F) {
	f.Add([]byte{}, uint16(0), byte(1))
	f.Add(make([]byte, 11), uint16(11), byte(0x80))
	f.Add(make([]byte, 40), uint16(40), byte(0xff))
	o := &once{testKey, "k"}
	f.Fuzz(func(t *testing.T, garbage []byte, at uint16, flip byte) {
		_, err := o.open(garbage)
		require.ErrorIs(t, err, errSealed)
		sealed, err := o.seal(firstReply{Status: 200, Body: []byte(`{}`)})
		require.NoError(t, err)
		sealed[int(at)%len(sealed)] ^= flip
		_, err = o.open(sealed)
		require.Equal(t, flip == 0, err == nil)
	})
}

func FuzzLastEventID(f *testing.F) {
	for _, id := range []string{"", "0", "7", "-1", "+1", "1e3", "0x7", "9223372036854775808", " 7", "a-7", "\u0663"} {
		f.Add(id, "0")
	}
	s := bareServer(f)
	for range 20 {
		s.Publish(Event{Topic: "worker:updated"})
	}
	f.Add(s.ring.id(3), "1")
	f.Add(s.ring.id(21), "1")
	f.Fuzz(func(t *testing.T, id, after string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header["Last-Event-Id"] = []string{id}
		q := r.URL.Query()
		q.Set("after", after)
		r.URL.RawQuery = q.Encode()
		n, err := tailStart(s.echo.NewContext(r, httptest.NewRecorder()))
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
		}
		require.GreaterOrEqual(t, n, int64(0))
		seq, ok := s.ring.seq(id)
		if !ok {
			return
		}
		events, _, known := s.ring.after(seq, nil, 100)
		require.Equal(t, known, seq <= 20)
		if known {
			require.Len(t, events, int(20-seq))
		}
	})
}

func FuzzTopics(f *testing.F) {
	for _, v := range []string{"", "build:updated", "build:updated,queue:updated", ",", "x", "build:updated\n"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		topics, err := topicFilter(v)
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
			return
		}
		require.Subset(t, Topics(), topics)
	})
}
