package http_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func decode[T any](t *testing.T, r reply) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(r.body), &v), r.body)
	return v
}

// requireShape checks that a reply has the members of the wire sample that the
// client is tested with, each of the same kind or null.
func requireShape(t *testing.T, sample string, r reply) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "wire", sample+".json"))
	require.NoError(t, err)
	var want, got any
	require.NoError(t, json.Unmarshal(raw, &want))
	require.NoError(t, json.Unmarshal([]byte(r.body), &got), r.body)
	sameShape(t, sample, want, got)
}

func sameShape(t *testing.T, at string, want, got any) {
	t.Helper()
	if want == nil || got == nil {
		return
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		require.True(t, ok, at)
		require.ElementsMatch(t, slices.Collect(maps.Keys(w)), slices.Collect(maps.Keys(g)), at)
		for k := range w {
			sameShape(t, at+"."+k, w[k], g[k])
		}
	case []any:
		g, ok := got.([]any)
		require.True(t, ok, at)
		for i := range g {
			sameShape(t, at+"[]", w[0], g[i])
		}
	default:
		require.IsType(t, want, got, at)
	}
}

// requireBody checks a reply to the byte: old clients search JSON as text.
func requireBody(t *testing.T, want string, r reply) {
	t.Helper()
	require.Equal(t, want, r.body)
}
