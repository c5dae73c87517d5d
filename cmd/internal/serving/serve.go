package serving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"takt/actors"
	"takt/actors/database"
	"takt/actors/deployment/forge"
	"takt/actors/notices"
	"takt/actors/pubsub"
	"takt/actors/telemetry"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/otlp"
	"takt/cmd/internal/settings"
	"takt/http"
	"takt/http/attention"
	"takt/http/dashboard"
	"takt/http/edge"
	"takt/migrations"
	"takt/storage"
	"takt/store"
	"takt/store/metrics"
	"takt/store/postgres"
	"takt/store/seal"
)

// Command returns takt serve.
func Command() *cobra.Command {
	var (
		file  string
		check bool
	)
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the controller", Args: cobra.NoArgs,
		Long: `Run the controller until SIGTERM or SIGINT.

Settings come from flags, then the environment, then the YAML file of --config,
then defaults. Without a database URL, takt runs its own PostgreSQL server in the
data directory. Without keys, it makes random ones and keeps them there.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := settings.Load(settings.RealSources(file, cmd.Flags()))
			if err != nil {
				return cli.AsUsage(err)
			}
			if check {
				if _, err := settings.OpenTLS(cfg, zerolog.Nop()); err != nil {
					return cli.AsUsage(err)
				}
				cfg.Print(cmd.OutOrStdout())
				return nil
			}
			return serve(cmd.Context(), cfg, cmd.ErrOrStderr())
		},
	}
	settings.AddFlags(cmd.Flags())
	settings.AddPort(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "YAML file of settings")
	cmd.Flags().BoolVar(&check, "check", false, "print the effective settings and exit")
	return cmd
}

// controller is a running `takt serve`. The fields are in the order in which they are
// opened; close closes them.
type controller struct {
	cfg      settings.Config
	log      zerolog.Logger
	recent   *recentLog
	traces   *telemetry.Traces // nil: no traces
	metrics  *metrics.Metrics
	listener net.Listener
	// activated is true if systemd keeps the listener's socket open.
	activated bool
	keys      *seal.Ring
	files     *storage.Files
	tree      *actors.Tree
	server    *http.Server
	tls       *edge.Certificate // nil: plain HTTP
	// welcome is the output for the text that tells a person what to do next.
	welcome io.Writer
	// forge is the client with which deployments find repositories.
	forge *forge.GitHub
	// stopOrders cancels running orders of operators and waits until they have ended.
	stopOrders func(cause error)
	later      sync.Once // see laterSchema
}

// serve runs the controller until a signal, the end of ctx, or the end of the tree. It
// returns nil only after a requested, orderly stop.
func serve(ctx context.Context, cfg settings.Config, out io.Writer) (err error) {
	onTerminal := cli.Terminal(out)
	if onTerminal && !strings.Contains(cfg.Log, ",") {
		cfg.Log += ",console"
	}
	recent := new(recentLog)
	log, err := cli.NewLogger(out, cfg.Log, recent)
	if err != nil {
		return err
	}
	// Signals are caught from here on, so that a half-started tree is also stopped in order.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := settings.OpenDataDir(cfg.DataDir, log); err != nil {
		return err
	}
	lock, err := database.LockDataDir(cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	made, err := settings.FillKeys(&cfg)
	if err != nil {
		return err
	}
	if err := cfg.CheckGuessable(log); err != nil {
		return cli.AsUsage(err)
	}
	for _, f := range made {
		log.Info().Str("file", f).Msg("made a random key")
	}
	if len(cfg.Unused) > 0 {
		log.Warn().Strs("settings", cfg.Unused).Strs("services", cfg.Services).Msg("ignoring settings of services that are left out")
	}
	keepHeadroom()
	c := &controller{cfg: cfg, log: log, recent: recent, metrics: metrics.New(), welcome: io.Discard}
	c.metrics.Gauge("takt_build_info").WithLabelValues(cli.Version(), cmp.Or(cli.Revision(), "unknown"), runtime.Version()).Set(1)
	if onTerminal {
		c.welcome = out
	}
	defer func() { err = errors.Join(err, c.close(context.WithoutCancel(ctx))) }()
	if err := c.open(ctx); err != nil {
		return err
	}
	return c.run(ctx)
}

// open makes everything that the tree's processes share. It starts none of them.
func (c *controller) open(ctx context.Context) error {
	var err error
	if c.traces, err = otlp.Open(ctx, c.cfg.OTLP, "takt", c.metrics, c.log); err != nil {
		return err
	}
	if c.keys, err = c.cfg.Ring(); err != nil {
		return err
	}
	if c.tls, err = settings.OpenTLS(c.cfg, c.log); err != nil {
		return err
	}
	if err := c.assemble(ctx); err != nil {
		return err
	}
	if err := c.listen(ctx); err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	return nil
}

// assemble makes the tree and the HTTP server in front of it.
func (c *controller) assemble(ctx context.Context) error {
	db := postgres.New()
	ring := &store.KeyRing{}
	keys := postgres.NewKeys(db, ring)
	sender := notices.New(postgres.NewNotices(db), c.keys, c.cfg.NoticeAllow, c.cfg.PublicURL)
	invariants := postgres.NewInvariants(db, c.keys, c.cfg.Services...)
	p := &parts{
		db: db,
		tree: actors.Config{
			Version:  cli.Version(),
			Pool:     database.PoolConfig{Size: c.cfg.DatabasePool, Migrate: postgres.WithKeyCheck(c.keys, migrations.UpOrLater(c.laterSchema))},
			Heijunka: c.cfg.Heijunka.Config(),
		},
		deps: actors.Deps{
			Logger: c.log, DB: db, Heijunka: postgres.NewHeijunka(db), Rows: postgres.NewFiles(db),
			Invariants: invariants, Metrics: c.metrics, Keys: keys, Notices: sender,
		},
	}
	if c.cfg.DatabaseURL != "" {
		guard := database.NewGuard(c.cfg.DataDir)
		source, direct, err := c.cfg.ExternalDatabase()
		if err != nil {
			return err
		}
		p.tree.Database = guard.Source(source)
		if direct != nil {
			p.tree.Pool.Direct = guard.Source(direct)
		}
	} else {
		p.tree.Embedded = &database.PostgresConfig{DataDir: c.cfg.DataDir, SearchPath: os.Getenv("PATH")}
	}
	for _, name := range c.cfg.Services {
		if err := c.openService(name, p); err != nil {
			return err
		}
	}
	c.tree = actors.New(p.tree, p.deps)
	db.OnLost(c.tree.Pool.Lost)

	// Orders of operators continue after a signal, until close.
	orders, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	c.stopOrders = func(cause error) {
		cancel(cause)
		running.Wait()
	}
	pages := postgres.NewDashboard(db)
	history := dashboard.NewHistory(c.tree.Heijunka, c.cfg.Platforms)
	web := http.Deps{
		Publish:  c.tree.Bus.Publish,
		Requests: c.tree.Heijunka,
		Ready:    c.tree.Ready, VacuumHeldBack: c.tree.VacuumHeldBack,
		Tree:  c.describe,
		Debug: c.debugHandler(db),
		Keys:  keys, Ring: ring, Notices: sender, Secrets: postgres.NewSecrets(db, c.keys),
		Operator: c.tree, Heijunka: c.tree.Heijunka, Audit: postgres.NewAudit(db), Auditor: c.tree.Auditor, Repair: invariants.Repair,
		Background: func(f func(context.Context)) { running.Go(func() { f(orders) }) },
		Serving:    history.Run,
		TLS:        c.tls,
		Metrics:    c.tree.Telemetry.Gatherer(), Observed: c.metrics,
		Logger: c.log,
	}
	for _, set := range p.handles {
		set(&web)
	}
	if web.Builds != nil { // the service builds
		web.Builds = history.Observe(c.tree.Queue.Counted, pages.Pulse, web.Builds)
	}
	web.Attention = attention.NewReader(c.attention(web, pages, history.Refused))
	server, err := http.New(web, c.httpConfig())
	if err != nil {
		return err
	}
	server.Handle(dashboard.New(server, dashboard.Deps{
		Deps: web, Store: pages, History: history,
	}, dashboard.Config{
		Services: c.cfg.Services, Chosen: c.cfg.Chosen, Secrets: c.keys.Secrets(), PlainSessions: strings.HasPrefix(c.cfg.PublicURL, "http://"), PublicURL: c.cfg.PublicURL, Version: cli.Version(),
		Platforms: c.cfg.Platforms,
	}).Routes()...)
	c.server = server
	c.tree.Bus.Subscribe(publishTo(server))
	if c.traces != nil {
		c.tree.Bus.Subscribe(c.traces.Take, pubsub.BuildUpdated, pubsub.SupervisorEvent)
	}
	c.tree.Telemetry.Register(server.Metrics())
	return nil
}

// attention returns where to look for what needs attention.
func (c *controller) attention(web http.Deps, pages *postgres.Dashboard, refused func() int) attention.Deps {
	d := attention.Deps{
		Store: pages, Ready: web.Ready, Tree: web.Tree, Refused: refused, Version: cli.Version(), Forecast: web.Forecast,
		Certificate: func() (never time.Time) { return never },
	}
	if c.tls != nil {
		d.Certificate = c.tls.NotAfter
	}
	if web.Builds != nil { // the service builds
		d.Files, d.Timeouts = web.Files, web.Heartbeat.Timeouts
	}
	return d
}

// httpConfig returns the configuration of the HTTP server.
func (c *controller) httpConfig() http.Config {
	rate := func(n int) int {
		if n == 0 {
			return -1
		}
		return n
	}
	return http.Config{
		Services: c.cfg.Services, Version: cli.Version(), Commit: cli.Revision(),
		Config: edge.Config{
			APIKey: c.cfg.APIKey, AdminKey: c.cfg.AdminKey, TelemetryWithoutKey: c.cfg.TelemetryWithoutKey,
			MaxConnections: c.connections(), TrustedProxies: c.cfg.TrustedProxies,
		},
		BaseImageID: c.cfg.BaseImageID, BuildTokenLife: c.cfg.BuildTokenLife, MaxBuildTimeout: c.cfg.MaxBuildTimeout, Platforms: c.cfg.Platforms,
		PollRate: rate(c.cfg.PollRate), RegisterRate: rate(c.cfg.RegisterRate),
		PublicURL: c.cfg.PublicURL, HubSpotSecret: c.cfg.HubSpot.App.ClientSecret,
		HubSpotBlock: c.cfg.HubSpot.Reply == "block", HubSpotExpiration: c.cfg.HubSpot.Expiration,
	}
}

// warnOfPlainHTTP logs once what is sent unencrypted.
func (c *controller) warnOfPlainHTTP() {
	addr, ok := c.listener.Addr().(*net.TCPAddr)
	if c.tls != nil || ok && addr.IP.IsLoopback() {
		return
	}
	c.log.Warn().Str("address", c.listener.Addr().String()).
		Msg("listening without TLS on an address that others can reach: keys, tokens and certificates are sent unencrypted; set --tls-cert and --tls-key, or use a proxy that speaks TLS")
}

// laterSchema warns, once, that a later release migrated the database.
func (c *controller) laterSchema(version, newest uint) {
	c.later.Do(func() {
		c.log.Warn().Uint("version", version).Uint("known", newest).
			Msg("a later release of takt migrated the database; going on, because its schema tolerates this one")
	})
}

// run starts the tree, prints the address, and waits.
func (c *controller) run(ctx context.Context) error {
	begin := time.Now()
	switch err := c.start(ctx); {
	case err != nil && ctx.Err() != nil:
		c.log.Info().AnErr("cause", err).Msg("stopping during the start")
		return nil
	case err != nil:
		return err
	}
	address := c.listener.Addr().String()
	if err := cli.WriteFile(filepath.Join(c.cfg.DataDir, "address"), []byte(address+"\n"), 0o644); err != nil {
		return fmt.Errorf("writing the address: %w", err)
	}
	c.log.Info().Str("address", address).Bool("tls", c.tls != nil).Str("data_dir", c.cfg.DataDir).Dur("took", time.Since(begin)).Msg("takt serves")
	c.warnOfPlainHTTP()
	c.greet(address)
	c.notify(daemon.SdNotifyReady, c.status())
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		c.log.Warn().Err(err).Msg("systemd watchdog not notified")
	}
	defer feed(ctx, watchdog, c.tree.Responds, func() { c.notify(daemon.SdNotifyWatchdog, c.status()) })()
	return c.wait(ctx)
}

// greet prints, on a terminal, where takt listens and what to do next.
func (c *controller) greet(address string) {
	scheme := "http"
	if c.tls != nil {
		scheme = "https"
	}
	if host, port, err := net.SplitHostPort(address); err == nil && net.ParseIP(host).IsUnspecified() {
		address = net.JoinHostPort("localhost", port)
	}
	url := cmp.Or(c.cfg.PublicURL, scheme+"://"+address)
	key := "the API key"
	fmt.Fprintf(c.welcome, "\ntakt serves at %s\n", url)
	file := filepath.Join(c.cfg.DataDir, "api-key")
	if kept, _ := cli.ReadSecret("API key", file); kept == c.cfg.APIKey { // which is never empty here
		key = "$(cat " + file + ")"
		fmt.Fprintf(c.welcome, "  API key    %s\n  admin key  %s\n", file, filepath.Join(c.cfg.DataDir, "admin-key"))
	}
	fmt.Fprintf(c.welcome, "next, in another terminal:\n  export TAKT_URL=%s TAKT_API_KEY=%s\n  takt worker --exec 'COMMAND'\n\n", url, key)
}

func (c *controller) start(ctx context.Context) error {
	err := c.tree.Start(ctx, func(ctx context.Context) error { return c.server.Serve(ctx, c.listener) })
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	return nil
}

// wait waits for a signal or the end of the tree. If an operator has ordered a restart, it
// starts the tree again; the listener stays open, so clients that connect meanwhile wait.
func (c *controller) wait(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
		case <-c.tree.Terminated():
			c.log.Info().Msg("stopping for an operator; waiting for running requests")
			return nil
		case <-c.tree.Done():
		}
		if ctx.Err() != nil {
			c.log.Info().Msg("stopping; waiting for running requests")
			return nil //nolint:nilerr // as ordered, also while it starts again
		}
		reason := c.tree.Reason()
		if !errors.Is(reason, actors.ErrRestart) {
			return fmt.Errorf("the supervision tree gave up: %w", reason)
		}
		c.log.Info().Msg("restarting the tree for an operator")
		if err := c.start(ctx); err != nil && ctx.Err() == nil { // otherwise it stops as ordered
			return err
		}
	}
}

// stop ends the requests and then the tree, and returns the processes that did not end.
// Meanwhile probes are answered, first by the endpoint and then by a server of stop's own. If
// systemd keeps the socket open, new connections wait for the next start instead.
func (c *controller) stop(ctx context.Context) (leaked []string) {
	c.notify(daemon.SdNotifyStopping, "waiting for running requests")
	if c.activated {
		c.server.HandOver(ctx)
	} else if c.listener != nil {
		serving, end := context.WithCancelCause(ctx)
		var probes sync.WaitGroup
		probes.Go(func() { // waits for the endpoint's end
			if err := c.server.Serve(serving, c.listener); err != nil {
				c.log.Warn().Err(err).Msg("probes are no longer answered")
			}
		})
		defer func() {
			end(nil)
			probes.Wait()
			c.server.Wait()
		}()
		c.server.Drain(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, settings.StopLimit, errors.New("stop limit"))
	defer cancel()
	return c.tree.Stop(ctx)
}

func (c *controller) close(ctx context.Context) error {
	var errs []error
	if c.tree != nil {
		if leaked := c.stop(ctx); len(leaked) > 0 {
			errs = append(errs, fmt.Errorf("%d processes did not end: %v", len(leaked), leaked))
		}
		if c.stopOrders != nil { // no new orders can arrive
			c.stopOrders(errors.New("takt is stopping"))
		}
		_ = os.Remove(filepath.Join(c.cfg.DataDir, "address")) // the address is no longer valid
	}
	if c.forge != nil {
		c.forge.Close()
	}
	if c.listener != nil {
		errs = append(errs, c.listener.Close())
	}
	if c.files != nil {
		errs = append(errs, c.files.Close())
	}
	c.traces.Close(ctx)
	return errors.Join(errs...)
}
