package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReferencesThatCloseACirclePointUp(t *testing.T) {
	t.Parallel()
	g := graph{"a": {"b": {"B"}, "c": {"C"}}, "b": {"c": {"C"}}, "c": {}}
	all, up := g.layers()
	require.Equal(t, 3, all)
	require.Empty(t, up)
	g["c"]["a"] = []string{"A"}
	_, up = g.layers()
	require.Equal(t, []reference{{"c", "a"}}, up)
}

// A reader of these packages can begin at one end.
func TestFewReferencesPointUp(t *testing.T) {
	t.Parallel()
	for dir, most := range map[string]int{"../../../http": 20} {
		g, err := read(t.Context(), dir)
		require.NoError(t, err)
		_, up := g.layers()
		require.LessOrEqual(t, len(up), most, "%s: run go run ./cmd/internal/layers ./http", dir)
	}
}
