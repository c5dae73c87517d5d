package edge

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// headers are pairs of a header and its value.
func headers(pairs ...string) http.Header {
	h := http.Header{}
	for pair := range slices.Chunk(pairs, 2) {
		h.Set(pair[0], pair[1])
	}
	return h
}

func TestOnlyAComparedKeyIsTrusted(t *testing.T) {
	t.Parallel()
	const apiRight, adminRight, wrong = "test-api-key-0123456789", "test-api-key-0123456789" + "-admin", "made-up-0123456789"
	ids := []string{"X-Worker-Id", "w", "X-Build-Id", "b"}
	cases := map[api.Access]struct {
		right   http.Header // nil: the class compares no key
		without store.Code  // error without any key
	}{
		api.Public:     {},
		api.Visitor:    {},
		api.Reader:     {},
		api.Operator:   {},
		api.APIKey:     {headers("X-API-Key", apiRight), store.Unauthorized},
		api.BuildKey:   {headers("X-API-Key", apiRight), store.Unauthorized},
		api.WorkerKey:  {headers(append(ids, "X-API-Key", apiRight)...), store.Unauthorized},
		api.HolderKey:  {headers(append(ids, "X-API-Key", apiRight)...), store.Unauthorized},
		api.MonitorKey: {headers(append(ids, "X-API-Key", apiRight)...), store.Unauthorized},
		api.AdminKey:   {headers("X-Admin-Key", adminRight), store.Unauthorized},
	}
	keys := NewKeys(Config{APIKey: apiRight, AdminKey: adminRight}, nil)
	for a := api.Public; a <= api.Operator; a++ {
		require.Contains(t, cases, a, "this kind of access is not tested")
	}
	for a, tt := range cases {
		for _, h := range []http.Header{
			headers(ids...),
			headers(append(ids, "X-API-Key", wrong)...),
			headers(append(ids, "X-Admin-Key", wrong)...),
			headers(append(ids, "X-API-Key", wrong, "X-Admin-Key", wrong)...),
			headers(append(ids, "X-API-Key", adminRight, "X-Admin-Key", apiRight)...),
			headers(append(ids, "X-API-Key", wrong, "X-Build-Token", wrong)...),
		} {
			_, proven, err := keys.authorize(&Route{Access: a}, h)
			require.False(t, proven, "access %d with %v", a, h)
			if tt.right != nil && h.Get("X-Build-Token") == "" {
				require.Error(t, err, "access %d with %v", a, h)
			}
		}
		_, _, err := keys.authorize(&Route{Access: a}, http.Header{})
		require.Equal(t, tt.without, store.CodeOf(err))
		if tt.right != nil {
			_, proven, err := keys.authorize(&Route{Access: a}, tt.right)
			require.NoError(t, err)
			require.True(t, proven, "access %d", a)
		}
	}
	open := NewKeys(Config{APIKey: apiRight, TelemetryWithoutKey: true}, nil)
	_, proven, err := open.authorize(&Route{Access: api.MonitorKey}, headers(ids...))
	require.NoError(t, err)
	require.False(t, proven, "no key was needed and none was compared")
	_, proven, err = open.authorize(&Route{Access: api.MonitorKey}, headers(append(ids, "X-API-Key", wrong)...))
	require.ErrorIs(t, err, ErrWrongKey)
	require.False(t, proven)
}
