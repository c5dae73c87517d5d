package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/edge"
	"takt/http/forecast"
	"takt/store"
)

// Services that nobody has used or chosen have no link, although they run by default.
func TestServicesHaveALinkOnceTheyAreUsedOrChosen(t *testing.T) {
	t.Parallel()
	links := func(chosen, used bool, read time.Time) []string {
		d := &Dashboard{services: []string{api.ServiceBuilds, api.ServiceThrottle, api.ServiceDeployments}, chosen: chosen, situation: edge.NewCache[*situation](forecast.Age)}
		d.deps.History = NewHistory(nil, nil)
		d.deps.Ready = func() bool { return false } // then it is the last one
		d.deps.Tree = func(bool) api.TreeNode { return api.TreeNode{Status: "running"} }
		d.last.Figures = store.Figures{Now: read, Throttled: used, Deployed: used}
		d.pages = d.allPages()
		var s screen
		d.frame(t.Context(), &s, []string{"/overview", "/throttle", "/deployments"})
		return edge.Each(s.Nav, func(p *page) string { return p.Path })
	}
	all := []string{"/overview", "/throttle", "/deployments"}
	require.Equal(t, all[:1], links(false, false, time.Now()))
	require.Equal(t, all, links(false, true, time.Now()))
	require.Equal(t, all, links(true, false, time.Now()))
	require.Equal(t, all, links(false, false, time.Time{}), "as long as it is not known")
}
