package dashboard

import (
	"context"
	"strings"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// page is one page of the dashboard.
type page struct {
	Path    string
	Title   string
	Key     string // its key in the navigation; "" if it is not there
	name    string // of its template
	service string // that it belongs to; "" for all
	access  api.Access
	// like is an endpoint of the API that gives this data. A session of a key with a name needs
	// its scope, so that pages and API show a key the same.
	like api.Route
	// params names the parameters that load reads. Others do not make another view, because
	// each view costs memory.
	params []string
	// load reads the page's data. Equal views get equal data, because viewers share it.
	load func(ctx context.Context, v *view) (any, error)
}

// section returns the path of the page in the navigation that p belongs to.
func (p *page) section() string { return "/" + strings.Split(p.Path, "/")[1] }

// allPages lists the pages of all services, in the order of the navigation. A login leads to
// the first one.
func (d *Dashboard) allPages() []*page {
	const builds, throttle, deployments = api.ServiceBuilds, api.ServiceThrottle, api.ServiceDeployments
	list := func(params ...string) []string { return append(params, "after") }
	return []*page{
		{"/overview", "Overview", "o", "overview", "", api.Reader, api.ListBuilds.Route, nil, d.loadOverview},
		{"/fleet", "Fleet", "f", "fleet", builds, api.Reader, api.ListWorkers.Route, list("q", "state", "platform", "sort"), d.loadFleet},
		{"/fleet/:id", "Worker", "", "worker", builds, api.Reader, api.ShowWorker.Route, nil, d.loadWorker},
		{"/queue", "Queue", "q", "queue", builds, api.Reader, api.ListBuilds.Route, list("running", "range"), d.loadQueue},
		{"/builds", "Builds", "b", "builds", builds, api.Reader, api.ListBuilds.Route, list("platform", "state", "age", "label", "q"), d.loadBuilds},
		{"/builds/:id", "Build", "", "build", builds, api.Reader, api.ShowBuild.Route, []string{"time"}, d.loadBuild},
		{"/builds/:id/log", "Log", "", "log", builds, api.Reader, api.ReadLogs.Route, list("before", "line", "to", "q", "time"), d.loadLog},
		{"/tree", "Tree", "t", "tree", "", api.Reader, api.ShowTree.Route, nil, d.loadTree},
		{"/tree/order", "Order", "", "order", "", api.Operator, api.RestartNode.Route, []string{"path", "action"}, d.loadOrder},
		{"/throttle", "Throttle", "r", "throttle", throttle, api.Reader, api.ShowQueues.Route, list("q"), d.loadThrottle},
		{"/deployments", "Deployments", "d", "deployments", deployments, api.Reader, api.ListDeployments.Route, list(), d.loadDeployments},
		{"/deployments/:id", "Deployment", "", "deployment", deployments, api.Reader, api.ShowDeployment.Route, list(), d.loadDeployment},
		{"/heijunka", "Heijunka", "h", "heijunka", "", api.Reader, api.ShowHeijunka.Route, []string{"range"}, d.loadHeijunka},
		{"/system", "System", "s", "system", "", api.Reader, api.ShowTimeouts.Route, nil, d.loadSystem},
		{"/keys", "Keys", "", "keys", "", api.Operator, api.ListKeys.Route, nil, d.loadKeys},
		{"/notices", "Notices", "", "notices", "", api.Operator, api.ListSubscriptions.Route, nil, d.loadNotices},
		{"/audit", "Audit", "a", "audit", "", api.Operator, api.ShowAudit.Route, list("q"), d.loadAudit},
	}
}

// scope returns the scope that the session of a key with a name needs. Whose build it is makes no
// difference: such a session has the scope read.
func (p *page) scope() store.Scope { return p.like.Scope }

// PageScopes returns the scopes that sessions of keys with names need for pages, by path.
func PageScopes() [][2]string {
	return edge.Each((&Dashboard{}).allPages(), func(p *page) [2]string { return [2]string{p.Path, string(p.scope())} })
}

// openTo returns the paths of the pages that a session may open.
func (d *Dashboard) openTo(s *session) (paths []string) {
	for _, p := range d.pages {
		if s != nil && s.opens(p.access, p.scope()) == nil {
			paths = append(paths, p.Path)
		}
	}
	return paths
}
