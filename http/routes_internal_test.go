package http

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// A route in the wrong domain starves others, or is starved by them.
func TestRoutesCompeteWhereTheyBelong(t *testing.T) {
	t.Parallel()
	for _, r := range bareServer(t).routes(Deps{}, Config{}.WithDefaults()) {
		operators := strings.HasPrefix(r.Path, "/admin/") || r.Path == "/api/builds/:id/requeue"
		require.Equal(t, operators, r.Access == api.AdminKey, "%s %s: key", r.Method, r.Path)
		want := r.Class
		switch {
		case operators:
			want = api.Ops
		case strings.HasPrefix(r.Path, "/api/hubspot/"):
			want = api.Hook
		case strings.HasPrefix(r.Path, "/api/config") && strings.HasPrefix(r.Method, "GET"):
			want = api.Query
		case strings.HasPrefix(r.Path, "/api/config"), strings.HasPrefix(r.Path, "/api/oauth/"):
			want = api.Write
		}
		require.Equal(t, want, r.Class, "%s %s", r.Method, r.Path)
		require.Equal(t, want == api.Hook, r.Class == api.Hook, "%s %s: the pool of webhooks is theirs", r.Method, r.Path)
	}
}
