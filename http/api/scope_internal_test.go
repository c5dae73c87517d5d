package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A declaration without a scope doesn't compile, and one whose scope contradicts its access ends
// the program when it starts.
func TestADeclarationNeedsAScope(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { declare[None, None](builds, APIKey, scopeNone, Query, "GET /trial", Route{}) })
	require.Panics(t, func() { declare[None, None](operators, AdminKey, "", Ops, "GET /trial", Route{}) })
	require.Panics(t, func() { declare[None, None](builds, Public, scopeRead, Query, "GET /trial", Route{}) })
	for _, r := range Routes() {
		require.NotEqual(t, "/trial", r.Path)
	}
}
