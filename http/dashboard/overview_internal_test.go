package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/attention"
)

// Services that nobody has used or chosen have no link, although they run by default.
func TestServicesHaveALinkOnceTheyAreUsedOrChosen(t *testing.T) {
	t.Parallel()
	links := func(chosen, used bool, read time.Time) (names []string) {
		d := &Dashboard{services: []string{api.ServiceBuilds, api.ServiceThrottle, api.ServiceDeployments}, chosen: chosen}
		now := &attention.Situation{}
		now.Now, now.Throttled, now.Deployed = read, used, used
		for _, name := range []string{"overview", "throttle", "deployments"} {
			if d.links(&page{name: name}, now) {
				names = append(names, name)
			}
		}
		return names
	}
	all := []string{"overview", "throttle", "deployments"}
	require.Equal(t, all[:1], links(false, false, time.Now()))
	require.Equal(t, all, links(false, true, time.Now()))
	require.Equal(t, all, links(true, false, time.Now()))
	require.Equal(t, all, links(false, false, time.Time{}), "as long as it is not known")
}
