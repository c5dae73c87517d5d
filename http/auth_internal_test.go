package http

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

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
	const apiRight, adminRight, wrong = testKey, testKey + "-admin", "made-up-0123456789"
	ids := []string{"X-Worker-Id", "w", "X-Build-Id", "b"}
	cases := map[access]struct {
		right   http.Header // nil: the class compares no key
		without store.Code  // error without any key
	}{
		public:     {},
		visitor:    {},
		reader:     {},
		operator:   {},
		apiKey:     {headers("X-API-Key", apiRight), store.Unauthorized},
		buildKey:   {headers("X-API-Key", apiRight), store.Unauthorized},
		workerKey:  {headers(append(ids, "X-API-Key", apiRight)...), store.Unauthorized},
		holderKey:  {headers(append(ids, "X-API-Key", apiRight)...), store.Unauthorized},
		monitorKey: {headers(append(ids, "X-API-Key", apiRight)...), store.Unauthorized},
		adminKey:   {headers("X-Admin-Key", adminRight), store.Unauthorized},
	}
	keys := newKeys(Config{APIKey: apiRight, AdminKey: adminRight})
	for _, r := range (&Server{shared: &shared{cfg: Config{}.WithDefaults()}, history: newHistory(Deps{})}).routes(Deps{}) {
		require.Contains(t, cases, r.access, "%s %s: this class of access is not tested", r.method, r.path)
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
			proven, err := keys.authorize(a, h)
			require.False(t, proven, "access %d with %v", a, h)
			if tt.right != nil && h.Get("X-Build-Token") == "" {
				require.Error(t, err, "access %d with %v", a, h)
			}
		}
		_, err := keys.authorize(a, http.Header{})
		require.Equal(t, tt.without, store.CodeOf(err))
		if tt.right != nil {
			proven, err := keys.authorize(a, tt.right)
			require.NoError(t, err)
			require.True(t, proven, "access %d", a)
		}
	}
	open := newKeys(Config{APIKey: apiRight, TelemetryWithoutKey: true})
	proven, err := open.authorize(monitorKey, headers(ids...))
	require.NoError(t, err)
	require.False(t, proven, "no key was needed and none was compared")
	proven, err = open.authorize(monitorKey, headers(append(ids, "X-API-Key", wrong)...))
	require.ErrorIs(t, err, errWrongKey)
	require.False(t, proven)
}
