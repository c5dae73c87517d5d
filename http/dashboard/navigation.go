package dashboard

import (
	"slices"

	"takt/http/api"
)

// pageServices are the services that pages belong to, by the first part of their path.
var pageServices = map[string]string{ //nolint:gochecknoglobals // a table
	"fleet": api.ServiceBuilds, "queue": api.ServiceBuilds, "builds": api.ServiceBuilds,
	"throttle": api.ServiceThrottle, "deployments": api.ServiceDeployments,
}

// leftOut reports whether page belongs to none of the services that run; none means all.
func leftOut(services []string, page string) bool {
	of := pageServices[page]
	return of != "" && len(services) > 0 && !slices.Contains(services, of)
}

// navItem is a page in the navigation. Sub is a page below it, "-" for none.
type navItem struct{ Page, Title, Key, Sub string }

// navigation returns the pages of the services that run. The first one is where a login leads.
func navigation(services []string) []navItem {
	return slices.DeleteFunc([]navItem{
		{"fleet", "Fleet", "f", "worker"},
		{"queue", "Queue", "q", "-"},
		{"builds", "Builds", "b", "build"},
		{"tree", "Tree", "t", "order"},
		{"heijunka", "Heijunka", "h", "-"},
		{"throttle", "Throttle", "r", "-"},
		{"deployments", "Deployments", "d", "deployment"},
		{"audit", "Audit", "a", "-"},
	}, func(item navItem) bool { return leftOut(services, item.Page) })
}
