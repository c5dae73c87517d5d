package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/store"
)

const (
	// heartbeatTimeout is the time-out of builds and workers.
	heartbeatTimeout = 6 * time.Second
	// stopLimit is how long a process may take to end in order.
	stopLimit = 2 * time.Minute
	// buildCommand is what the processes of `takt worker` run for each build.
	buildCommand = `sleep 0.3; cp data "$TAKT_OUTPUT"`
)

// program is one process of takt, and those that come after it.
type program struct {
	name  string
	start func(ctx context.Context) (*process.Process, error)
	busy  sync.Mutex // held by the fault that stops, ends or restarts it
	// launches is guarded by busy once faults are made.
	launches int
	now      atomic.Pointer[process.Process]
}

// launch starts the next process. It keeps the log of the one before.
func (p *program) launch(ctx context.Context, dir string) error {
	p.launches++
	log := filepath.Join(dir, p.name)
	_ = os.Rename(log+".log", fmt.Sprintf("%s.%d.log", log, p.launches-1)) // there is none before the first
	now, err := p.start(ctx)
	if err == nil {
		p.now.Store(now)
	}
	return err
}

// controller is a program that serves.
type controller struct {
	program
	serves atomic.Pointer[process.Controller]
}

// site is all that a drill runs: PostgreSQL and S3, controllers that reach them through
// proxies, workers, and a proxy that spreads what clients send over the controllers.
type site struct {
	process.Site

	// databaseHost runs PostgreSQL, and has none of the builds. What starts with the database's
	// URL may be beside it. nil with a pair.
	databaseHost *controller
	pair         *pair
	services     *services // nil without a pair
	controllers  []*controller
	workers      []*program
	s3           *process.Process
	database     func() string // reaches PostgreSQL without the proxy
	apiKey       string

	databaseProxy, s3Proxy, clientProxy *proxy
	// client speaks to the controllers through clientProxy.
	client *client.Client
	turn   atomic.Uint64
}

// all returns every program that takt runs.
func (s *site) all() []*program {
	var all []*program
	if s.databaseHost != nil {
		all = append(all, &s.databaseHost.program)
	}
	for _, c := range s.controllers {
		all = append(all, &c.program)
	}
	return append(all, s.workers...)
}

// open starts everything.
func (s *site) open(ctx context.Context, cfg config) {
	settings := append([]string{
		"TAKT_BUILD_TIMEOUT=" + heartbeatTimeout.String(), "TAKT_WORKER_TIMEOUT=" + heartbeatTimeout.String(),
		"TAKT_BUILD_MAX_ATTEMPTS=1000", "TAKT_QUARANTINE=off",
	}, s.startS3(ctx, cfg.s3)...)
	settings = append(settings, s.openDatabase(ctx, cfg)...)
	if s.services != nil {
		settings = append(settings, s.services.settings()...)
	}
	for i := range cfg.controllers {
		s.controllers = append(s.controllers, s.controller(fmt.Sprintf("controller-%d", i+1), settings...))
	}
	must.Do(must.Spread(cfg.controllers, cfg.controllers, func(i int) { must.Do(s.controllers[i].launch(ctx, s.Dir)) }))
	s.clientProxy = must.Get(newProxy(ctx, s.dialController))
	one := s.controllers[0].serves.Load()
	s.apiKey = one.APIKey
	if s.services != nil {
		s.services.install(ctx, one)
	}
	s.client = must.Get(client.New(client.Config{
		BaseURL: "http://" + s.clientProxy.Address, APIKey: one.APIKey, AdminKey: one.AdminKey,
		StallTimeout: 20 * time.Second, ReplyTimeout: time.Minute,
	}))
}

// openDatabase starts PostgreSQL, and returns the settings of controllers that share it.
func (s *site) openDatabase(ctx context.Context, cfg config) (settings []string) {
	if cfg.failover {
		s.pair = &pair{}
		s.pair.open(ctx, s.Dir)
		s.services = startServices(ctx, s.Dir)
		s.database = func() string { return s.pair.nodes[s.pair.primary].URL() }
		return []string{
			"TAKT_DATABASE_URL=" + s.pair.url(), "TAKT_API_KEY=" + store.NewID(), "TAKT_ADMIN_KEY=" + store.NewID(),
			"TAKT_ENCRYPTION_KEY=" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("drill---", 4))),
		}
	}
	s.databaseHost = s.controller("database-host", "TAKT_SERVICES=deployments")
	must.Do(s.databaseHost.launch(ctx, s.Dir))
	host := s.databaseHost.serves.Load()
	s.database = host.DatabaseURL
	socket := filepath.Join(host.DataDir, "postgres", ".s.PGSQL.5432")
	s.databaseProxy = must.Get(newProxy(ctx, dialer("unix", socket)))
	name, port, _ := net.SplitHostPort(s.databaseProxy.Address)
	url := strings.Replace(s.database(), "host="+filepath.Dir(socket)+" port=5432", "host="+name+" port="+port, 1)
	return append(host.Shared(), "TAKT_DATABASE_URL="+url)
}

// dialer connects to one address.
func dialer(network, address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, address) }
}

// controller describes a controller, which keeps the address of its first start.
func (s *site) controller(name string, settings ...string) *controller {
	c := &controller{program: program{name: name}}
	c.start = func(ctx context.Context) (*process.Process, error) {
		own := settings
		if before := c.serves.Load(); before != nil {
			own = append(slices.Clip(own), "TAKT_LISTEN="+before.Address)
		}
		serves, err := s.Controller(ctx, name, own...)
		if err != nil {
			return nil, err
		}
		c.serves.Store(serves)
		return serves.Process, nil
	}
	return c
}

// startWorkers starts processes of `takt worker`.
func (s *site) startWorkers(ctx context.Context, n int) {
	through := &process.Controller{URL: s.client.BaseURL(), APIKey: s.apiKey}
	for i := range n {
		name := fmt.Sprintf("worker-%d", i+1)
		p := &program{name: name, start: func(context.Context) (*process.Process, error) {
			return s.Worker(through, name, buildCommand, nil, "--heartbeat", "500ms", "--poll-wait", "5s", "--log", "info,json")
		}}
		must.Do(p.launch(ctx, s.Dir))
		s.workers = append(s.workers, p)
	}
}

// startS3 starts the S3 server and its proxy, and returns takt's settings.
func (s *site) startS3(ctx context.Context, server string) []string {
	const bucket, access, secret = "takt-drill", "takt-drill-access", "takt-drill-secret-5d1f"
	data, meta := filepath.Join(s.Dir, "s3"), filepath.Join(s.Dir, "meta")
	must.Do(errors.Join(os.MkdirAll(filepath.Join(data, bucket), 0o700), os.MkdirAll(meta, 0o700)))
	ln := must.Get((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))
	dial := dialer("tcp", ln.Addr().String())
	_ = ln.Close()
	var err error
	s.s3, err = process.Site{Takt: server, Dir: s.Dir, Environ: s.Environ}.Launch("s3", nil,
		"--port", ln.Addr().String(), "--access", access, "--secret", secret, "--quiet", "--keep-alive", "posix", "--sidecar", meta, data)
	if err != nil {
		must.Do(fmt.Errorf("starting the S3 server (make setup-s3 installs it; --s3 names another): %w", err))
	}
	must.Do(s.s3.Await(ctx, "S3 to answer", nil, func(ctx context.Context) (bool, error) {
		c, err := dial(ctx)
		if err == nil {
			_ = c.Close()
		}
		return err == nil, nil
	}))
	s.s3Proxy = must.Get(newProxy(ctx, dial))
	return []string{
		"TAKT_STORAGE=s3", "TAKT_S3_ENDPOINT=http://" + s.s3Proxy.Address, "TAKT_S3_BUCKET=" + bucket,
		"TAKT_S3_ACCESS_KEY=" + access, "TAKT_S3_SECRET_KEY=" + secret,
	}
}

// dialController reaches the next controller that accepts connections.
func (s *site) dialController(ctx context.Context) (c net.Conn, err error) {
	first := int(s.turn.Add(1))
	for i := range s.controllers {
		next := s.controllers[(first+i)%len(s.controllers)].serves.Load()
		if c, err = new(net.Dialer).DialContext(ctx, "tcp", next.Address); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// sql runs f with a connection to PostgreSQL that no fault of the network concerns.
func (s *site) sql(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, s.database())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }() // a fault may have ended it
	return f(ctx, c)
}

// close ends everything in order and returns what ended otherwise.
func (s *site) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var failed error
	if s.client != nil {
		s.client.CloseIdle()
	}
	for _, program := range slices.Backward(s.all()) { // the databaseHost last
		if p := program.now.Load(); p != nil {
			failed = errors.Join(failed, p.Stop(ctx, stopLimit), crashed(p))
		}
	}
	for _, p := range []*proxy{s.clientProxy, s.databaseProxy, s.s3Proxy} {
		if p != nil {
			p.Close()
		}
	}
	if s.pair != nil {
		s.pair.close()
	}
	if s.services != nil {
		s.services.close()
	}
	if s.s3 != nil && s.s3.Alive() {
		s.s3.Kill()
	}
	return failed
}

// crashLine is a line of takt's log about an actor that crashed, gave up or did not end.
var crashLine = regexp.MustCompile(`(?m)^\{"level":"error".*"event":"(exit|gave_up|abandoned|start_failed)".*$|^panic: .*$`)

// crashed returns an error if p's log says that something crashed.
func crashed(p *process.Process) error {
	if found := crashLine.FindString(p.Output()); found != "" {
		return fmt.Errorf("%s: %.600s", p.Name, found)
	}
	return nil
}
