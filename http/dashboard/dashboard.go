package dashboard

import (
	"context"
	"html/template"
	"slices"
	"strings"
	"time"

	"takt/http"
	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// Store reads the data of the pages.
type Store interface {
	Fleet(ctx context.Context, f store.WorkerFilter, p store.Page) (rows []store.WorkerDetail, next store.Cursor, states map[string]int, err error)
	FleetSummary(ctx context.Context) ([]store.FleetSummary, error)
	NamedWorkers(ctx context.Context, text string, limit int) ([]store.Named, error)
	Waiting(ctx context.Context, p store.Page) ([]store.PendingBuild, store.Cursor, error)
	WaitingBuild(ctx context.Context, id string) (*store.PendingBuild, error)
	Running(ctx context.Context, p store.Page) ([]store.RunningBuild, store.Cursor, error)
	Durations(ctx context.Context) (map[store.Platform]store.Durations, error)
	LogPage(ctx context.Context, id string, before int64, limit int) ([]store.LogLine, error)
	Milestones(ctx context.Context, id string) ([]store.Milestone, error)
	Repos(ctx context.Context, deployment string, p store.Page) ([]store.DeploymentRepo, store.Cursor, error)
	Pulse(ctx context.Context, since time.Time) (store.Pulse, error)
}

// Deps is what a Dashboard works with: what the server does, and data of its own.
type Deps struct {
	http.Deps
	Store Store
	// History is what plots show. Its owner runs it.
	History *History
}

// Config is what an operator may set.
type Config struct {
	// Services are those that have pages; none means all. The dependencies of the others
	// are never used.
	Services []string
	// Secrets are the encryption keys, the current one first. The signatures of sessions
	// depend on them, because who knows only the API key must not be able to test guesses
	// of the admin key on a session of its own. If there are none, sessions end with the
	// process.
	Secrets [][]byte
	// PlainSessions allows sessions over plain HTTP from other machines. Anyone who can
	// read that traffic then has the key.
	PlainSessions bool
	// PublicURL is the URL under which visitors reach this server.
	PublicURL string
}

// Dashboard serves the pages for people. It uses the same stores and gives the same
// orders as the API. Its state is a cache that may be lost.
type Dashboard struct {
	server    *http.Server
	deps      Deps
	sessions  *sessions
	services  []string
	front     string // the page that a login leads to
	templates map[string]*template.Template
	assets    map[string]asset
	version   string // of the assets
	places    *edge.Limiter
	logins    *edge.Limiter // requests whose login is being read
	live      *live
	known     *lastKnown

	fleet     *edge.Memo[[]store.FleetSummary]
	durations *edge.Memo[map[store.Platform]store.Durations]
}

// New returns the dashboard of a server, whose handlers carry out its acts. The caller adds
// its routes to the server.
func New(server *http.Server, deps Deps, cfg Config) *Dashboard {
	nav := navigation(cfg.Services)
	d := &Dashboard{
		server: server, deps: deps, sessions: newSessions(cfg, server.Config, server.Keys),
		services: cfg.Services, front: "/" + nav[0].Page, templates: parsePages(nav),
		places: edge.NewLimiter(placeLimit), logins: edge.NewLimiter(edge.Limit{Rule: "logins", Most: 512, Each: 64}), live: newLive(), known: newLastKnown(),
		fleet:     edge.NewMemo[[]store.FleetSummary](time.Second),
		durations: edge.NewMemo[map[store.Platform]store.Durations](10 * time.Second),
	}
	d.assets, d.version = readAssets()
	return d
}

const get, post = "GET", "POST"

// Routes lists the dashboard's routes.
func (d *Dashboard) Routes() []edge.Route {
	// screen is a page and its stream of changes; the functions after it are for a
	// browser's other requests. None is levelled, like /admin.
	screen := func(path string, a api.Access, p *page) edge.Route {
		return edge.Route{Method: get, Path: path, Access: a, Class: api.Ops, Body: d.server.Config.MaxJSON, Serve: d.show(p), Handle: d.whole(p)}
	}
	visit := func(method, path string, handle edge.Handler) edge.Route {
		return edge.Route{Method: method, Path: path, Access: api.Visitor, Class: api.Ops, Body: maxForm, Serve: d.open, Handle: handle}
	}
	file := func(path string, e api.Route) edge.Route {
		return edge.Route{
			Method: e.Method, Path: path, Access: api.Reader, Class: api.Transfer, Body: d.server.Config.MaxJSON,
			Serve: d.downloadBuild, Handle: d.server.HandlerOf(get, e.Path),
		}
	}
	all := slices.Concat([]edge.Route{
		visit(get, "/login", d.loginPage),
		visit(post, "/login", d.login),
		visit(post, "/logout", d.logout),
		visit(get, "/assets/:name", d.asset),
		{Method: get, Path: "/search", Access: api.Reader, Class: api.Ops, Body: d.server.Config.MaxJSON, Serve: d.guarded, Handle: d.search},
		file("/builds/:id/download", api.DownloadResult.Route),
		file("/builds/:id/download/:type", api.DownloadFile.Route),
		screen("/fleet", api.Reader, &page{"fleet", "Fleet", d.loadFleet}),
		screen("/fleet/:id", api.Reader, &page{"worker", "Worker", d.loadWorker}),
		screen("/queue", api.Reader, &page{"queue", "Queue", d.loadQueue}),
		screen("/builds", api.Reader, &page{"builds", "Builds", d.loadBuilds}),
		screen("/builds/:id", api.Reader, &page{"build", "Build", d.loadBuild}),
		screen("/builds/:id/log", api.Reader, &page{"log", "Log", d.loadLog}),
		screen("/tree", api.Reader, &page{"tree", "Tree", d.loadTree}),
		screen("/tree/order", api.Operator, &page{"order", "Order", d.loadOrder}),
		screen("/heijunka", api.Reader, &page{"heijunka", "Heijunka", d.loadHeijunka}),
		screen("/throttle", api.Reader, &page{"throttle", "Throttle", d.loadThrottle}),
		screen("/deployments", api.Reader, &page{"deployments", "Deployments", d.loadDeployments}),
		screen("/deployments/:id", api.Reader, &page{"deployment", "Deployment", d.loadDeployment}),
		screen("/audit", api.Operator, &page{"audit", "Audit", d.loadAudit}),
	}, d.acts())
	return slices.DeleteFunc(all, func(r edge.Route) bool { return leftOut(d.services, strings.Split(r.Path, "/")[1]) })
}
