package dashboard

import (
	"context"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http"
	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// Store reads the data of the pages.
type Store interface {
	Fleet(ctx context.Context, f store.WorkerFilter, p store.Page) (rows []store.WorkerDetail, next store.Cursor, states map[string]int, err error)
	CountBuilds(ctx context.Context, f store.BuildFilter) (int, error)
	Controllers(ctx context.Context) (int, error)
	NamedWorkers(ctx context.Context, text string, limit int) ([]store.Named, error)
	Waiting(ctx context.Context, p store.Page) ([]store.PendingBuild, store.Cursor, error)
	Running(ctx context.Context, p store.Page) ([]store.RunningBuild, store.Cursor, error)
	LogPage(ctx context.Context, id string, at int64, older, newer int) ([]store.LogLine, error)
	FindLine(ctx context.Context, id string, number int) (seq int64, last store.LogLine, err error)
	SearchLog(ctx context.Context, id, text string, seq int64, limit int) (found []store.LogLine, last store.LogLine, err error)
	Repos(ctx context.Context, deployment string, p store.Page) ([]store.DeploymentRepo, store.Cursor, error)
}

// Deps are a Dashboard's dependencies: the server's, and some of its own.
type Deps struct {
	http.Deps
	Store Store
	// History has the data of plots. Its owner runs it.
	History *History
}

// Config has the settings.
type Config struct {
	// Services are those that have pages; none means all. The dependencies of the others
	// are never used.
	Services []string
	// Chosen is true if an operator has named the services. The pages of those never used have no
	// link otherwise.
	Chosen bool
	// Secrets are the encryption keys, the current one first. The signatures of sessions
	// depend on them, because a user who knows only the API key must not be able to test
	// guesses of the admin key on a session. If there are none, sessions end with the
	// process.
	Secrets [][]byte
	// PlainSessions allows sessions over plain HTTP from other machines. Anyone who can
	// read that traffic then has the key.
	PlainSessions bool
	// PublicURL is the URL under which visitors reach this server.
	PublicURL string
	// Version is takt's.
	Version string
	// Platforms are those that builds may be for; none means ios and android.
	Platforms []store.Platform
}

// Dashboard serves the pages for people. It uses the same stores and gives the same
// orders as the API. Its state is a cache that may be lost.
type Dashboard struct {
	server    *http.Server
	deps      Deps
	sessions  *sessions
	services  []string
	chosen    bool // by an operator
	platforms []string
	pages     []*page
	front     string            // the page that a login leads to
	done      map[string]string // the message after an act, by the act's name
	live      *live
	known     *lastKnown

	build   string // takt's version
	started time.Time
	rates   *edge.Cache[rates]
	kept    [2]reading // of the metrics; guarded by rates
}

// New returns the dashboard of a server, whose handlers carry out its acts. The caller adds
// its routes to the server.
func New(server *http.Server, deps Deps, cfg Config) *Dashboard {
	d := &Dashboard{
		server: server, deps: deps, sessions: newSessions(cfg, server.Config, server.Keys),
		services: cfg.Services, chosen: cfg.Chosen, done: orderTexts(),
		live: newLive(), known: newLastKnown(),
		platforms: platformNames(cfg.Platforms),
		build:     cfg.Version, started: time.Now(), rates: edge.NewCache[rates](time.Second),
	}
	d.pages = slices.DeleteFunc(d.allPages(), func(p *page) bool { return !d.runs(p.service) })
	d.front = d.pages[0].Path
	d.kept = [2]reading{{at: d.started}, {at: d.started}}
	server.NoRoute = d.noPage
	return d
}

// platformNames returns the names of platforms, those of ios and android if there are none.
func platformNames(all []store.Platform) []string {
	if len(all) == 0 {
		all = []store.Platform{store.IOS, store.Android}
	}
	return edge.Each(all, func(p store.Platform) string { return string(p) })
}

// runs reports whether a service runs; "" always does.
func (d *Dashboard) runs(service string) bool {
	return service == "" || len(d.services) == 0 || slices.Contains(d.services, service)
}

const get, post = "GET", "POST"

// Routes lists the dashboard's routes: pages, acts, and what else a browser requests. None is
// levelled but files, like /admin.
func (d *Dashboard) Routes() []edge.Route {
	routes := []edge.Route{
		d.route(get, "/login", api.Visitor, d.loginPage),
		d.route(post, "/login", api.Visitor, d.login),
		d.route(post, "/logout", api.Visitor, d.logout),
		d.route(get, "/assets/:name", api.Visitor, d.asset),
		d.route(get, "/search", api.Reader, d.search),
		d.file("/builds/:id/download", api.DownloadResult.Route),
		d.file("/builds/:id/download/:type", api.DownloadFile.Route),
		d.rawLogRoute(),
	}
	for _, p := range d.pages {
		r := d.route(get, p.Path, p.access, func(ctx context.Context, c echo.Context) (any, error) { return d.showPage(ctx, c, d.newView(c, p)) })
		r.Scope, r.Serve = p.scope(), d.pageOrStream(p)
		routes = append(routes, r)
	}
	return slices.DeleteFunc(append(routes, d.acts()...), func(r edge.Route) bool { return !d.runs(r.Service) })
}

func (d *Dashboard) route(method, path string, access api.Access, handle edge.Handler) edge.Route {
	return edge.Route{Method: method, Path: path, Access: access, Class: api.Ops, Body: maxForm, Serve: d.serve, Handle: handle}
}

// file returns the route of a file that the interface sends as well.
func (d *Dashboard) file(path string, e api.Route) edge.Route {
	r := d.route(e.Method, path, api.Reader, d.server.HandlerOf(get, e.Path))
	r.Service, r.Class, r.Serve = e.Service, api.Transfer, d.transfer
	return r
}
