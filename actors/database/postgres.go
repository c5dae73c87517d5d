package database

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/actors/otp"
)

// PostgresConfig configures the embedded database.
type PostgresConfig struct {
	// DataDir is takt's data directory. The cluster is in its subdirectory "postgres", the
	// password in its file "postgres.password".
	DataDir string
	// SearchPath is a list of directories like $PATH. Server programs found there are
	// preferred. May be empty.
	SearchPath string
	// EvenMoved also runs a cluster that MarkMoved has marked.
	EvenMoved bool
	// Globs are glob patterns of directories that may have the server programs. Defaults to
	// where Debian, Red Hat, Alpine, Homebrew and Postgres.app put them.
	Globs []string
}

const (
	// startTimeout bounds creating, starting and recovering the database. It is long, because
	// an interrupted recovery begins again.
	startTimeout = 15 * time.Minute
	// stopTimeout is how long a fast shutdown may take. Then the server gets an immediate one.
	stopTimeout = 20 * time.Second
	// quitTimeout is how long the immediate shutdown may take before SIGKILL, and how long to
	// wait after that.
	quitTimeout = 6 * time.Second
)

// Postgres is the handle of the embedded server. It stays valid when the server restarts, and is
// safe for concurrent use.
type Postgres struct {
	cfg     PostgresConfig
	running atomic.Pointer[cluster]
}

// ErrNotRunning reports that the embedded database is starting or stopping.
var ErrNotRunning = errors.New("the embedded database is not running")

// NewPostgres returns the handle of the server that the child of Spec will run.
func NewPostgres(cfg PostgresConfig) *Postgres {
	if cfg.Globs == nil {
		cfg.Globs = wellKnown()
	}
	return &Postgres{cfg: cfg}
}

// Spec returns the specification of the actor that runs the server. The actor's start returns
// when the server answers, and the actor fails when the server ends.
func (p *Postgres) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "postgres",
		Server:   func() otp.Server { return &postgresServer{handle: p} },
		Shutdown: stopTimeout + 2*quitTimeout + 2*time.Second,
	}
}

// ConnConfig returns the configuration of connections to the running server, or ErrNotRunning.
// It is a Source. The result is invalid after the next restart of the server, so callers must
// not keep it.
func (p *Postgres) ConnConfig(context.Context) (*pgx.ConnConfig, error) {
	cl := p.running.Load()
	if cl == nil {
		return nil, ErrNotRunning
	}
	return cl.connConfig(databaseName)
}

// postgresServer is the actor that runs the server. It owns the server process and the open
// directory. When it crashes, the server is stopped, or adopted by the next actor.
type postgresServer struct {
	otp.Base
	handle  *Postgres
	cluster *cluster
	process *process
}

// ended is sent when a server's process has ended.
type ended struct{ process *process }

// Init starts or adopts the server and returns when it answers.
func (s *postgresServer) Init(c *otp.Ctx) error {
	log := c.Logger()
	ctx, cancel := context.WithTimeoutCause(c.UntilStop(), startTimeout, fmt.Errorf("the database was not ready within %s", startTimeout))
	defer cancel()
	begun := time.Now()

	cl, err := openCluster(ctx, s.handle.cfg, *log, func(f func()) {
		c.Async(func(context.Context) any {
			f()
			return nil
		})
	})
	if err != nil {
		return err
	}
	p, err := cl.bringUp(ctx)
	if err != nil {
		cl.close()
		return err
	}
	s.cluster, s.process = cl, p
	c.Async(func(context.Context) any {
		<-p.ended
		return ended{p}
	})
	s.handle.running.Store(cl)
	log.Info().Int("pid", p.pid).Int("version", cl.bins.Major).Str("dir", cl.dir).Dur("took", time.Since(begun)).Msg("embedded database ready")
	return nil
}

// HandleInfo ends the actor when the server has ended.
func (s *postgresServer) HandleInfo(c *otp.Ctx, msg any) {
	switch m := msg.(type) {
	case ended:
		if m.process == s.process {
			c.Stop(s.process.fate)
		}
	default:
		s.Base.HandleInfo(c, msg)
	}
}

// Terminate stops the server. It clears the handle first, so that no caller connects to a
// server that is stopping.
func (s *postgresServer) Terminate(c *otp.Ctx, _ error) {
	s.handle.running.CompareAndSwap(s.cluster, nil)
	if s.process == nil {
		return
	}
	log := c.Logger()
	begun := time.Now()
	if !s.process.running() {
		log.Error().Err(s.process.fate).Msg("embedded database ended unexpectedly")
	} else if err := s.process.stop(c.Context(), stopTimeout, quitTimeout, *log); err != nil {
		log.Error().Err(err).Msg("embedded database left running; the next start adopts or stops it")
	} else {
		log.Info().Dur("took", time.Since(begun)).Msg("embedded database stopped")
	}
	s.process.release()
	s.cluster.close()
}
