package dashboard

import (
	"context"
	"strings"

	"takt/http/api"
)

// page is one page of the dashboard.
type page struct {
	Path    string
	Title   string
	Key     string // its key in the navigation; "" if it is not there
	name    string // of its template
	service string // that it belongs to; "" for all
	access  api.Access
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
		{"/overview", "Overview", "o", "overview", "", api.Reader, nil, d.loadOverview},
		{"/fleet", "Fleet", "f", "fleet", builds, api.Reader, list("q", "state", "platform", "sort"), d.loadFleet},
		{"/fleet/:id", "Worker", "", "worker", builds, api.Reader, nil, d.loadWorker},
		{"/queue", "Queue", "q", "queue", builds, api.Reader, list("running", "range"), d.loadQueue},
		{"/builds", "Builds", "b", "builds", builds, api.Reader, list("platform", "state", "age", "label", "q"), d.loadBuilds},
		{"/builds/:id", "Build", "", "build", builds, api.Reader, []string{"time"}, d.loadBuild},
		{"/builds/:id/log", "Log", "", "log", builds, api.Reader, list("before", "line", "to", "q", "time"), d.loadLog},
		{"/tree", "Tree", "t", "tree", "", api.Reader, nil, d.loadTree},
		{"/tree/order", "Order", "", "order", "", api.Operator, []string{"path", "action"}, d.loadOrder},
		{"/throttle", "Throttle", "r", "throttle", throttle, api.Reader, list("q"), d.loadThrottle},
		{"/deployments", "Deployments", "d", "deployments", deployments, api.Reader, list(), d.loadDeployments},
		{"/deployments/:id", "Deployment", "", "deployment", deployments, api.Reader, list(), d.loadDeployment},
		{"/heijunka", "Heijunka", "h", "heijunka", "", api.Reader, []string{"range"}, d.loadHeijunka},
		{"/system", "System", "s", "system", "", api.Reader, nil, d.loadSystem},
		{"/keys", "Keys", "", "keys", "", api.Operator, nil, d.loadKeys},
		{"/notices", "Notices", "", "notices", "", api.Operator, nil, d.loadNotices},
		{"/audit", "Audit", "a", "audit", "", api.Operator, list("q"), d.loadAudit},
	}
}

// Operators reports whether only operators may open the page.
func (p *page) Operators() bool { return p.access == api.Operator }
