package http

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A route in the wrong domain starves others, or is starved by them.
func TestRoutesCompeteWhereTheyBelong(t *testing.T) {
	t.Parallel()
	for _, r := range (&Server{shared: &shared{cfg: Config{}.WithDefaults()}, history: newHistory(Deps{})}).routes(Deps{}) {
		operators := strings.HasPrefix(r.path, "/admin/") || r.path == "/api/builds/:id/requeue"
		require.Equal(t, operators, r.access == adminKey, "%s %s: key", r.method, r.path)
		want := r.domain
		switch {
		case operators:
			want = ops
		case strings.HasPrefix(r.path, "/api/hubspot/"):
			want = hook
		case strings.HasPrefix(r.path, "/api/config") && strings.HasPrefix(r.method, "GET"):
			want = query
		case strings.HasPrefix(r.path, "/api/config"), strings.HasPrefix(r.path, "/api/oauth/"):
			want = submit
		}
		require.Equal(t, want, r.domain, "%s %s", r.method, r.path)
		require.Equal(t, want == hook, r.domain == hook, "%s %s: the pool of webhooks is theirs", r.method, r.path)
	}
}
