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
	// DataDir is takt's data directory. The cluster is its subdirectory "postgres". The
	// login is its file "postgres.password".
	DataDir string
	// SearchPath is a list of directories like $PATH. Server programs found there are
	// preferred. May be empty.
	SearchPath string
	// EvenMoved also runs a cluster that MarkMoved has marked.
	EvenMoved bool
	// Globs are glob patterns of directories that may hold the server
	// programs. Defaults to where Debian, Red Hat, Alpine, Homebrew and
	// Postgres.app put them.
	Globs []string
}

const (
	// startTimeout bounds making, starting and recovering the database. It is long,
	// because a recovery that is interrupted starts again from its beginning.
	startTimeout = 15 * time.Minute
	// stopTimeout is how long an orderly shutdown may take. After it the server gets an
	// immediate shutdown.
	stopTimeout = 20 * time.Second
	// quitTimeout is the wait after stopTimeout, once before SIGKILL and once after it.
	quitTimeout = 6 * time.Second
)

// Postgres is the handle of the embedded server. It outlives the server's
// incarnations and is safe for concurrent use.
type Postgres struct {
	cfg     PostgresConfig
	running atomic.Pointer[cluster]
}

// ErrNotRunning reports that the embedded database is starting or stopping.
var ErrNotRunning = errors.New("the embedded database is not running")

// NewPostgres returns the handle of a server that Spec's child will run.
func NewPostgres(cfg PostgresConfig) *Postgres {
	if cfg.Globs == nil {
		cfg.Globs = wellKnown()
	}
	return &Postgres{cfg: cfg}
}

// Spec is the child that runs the server. Its start returns when the server answers. It
// ends with a reason when the server ends, and a new incarnation starts the server again.
func (p *Postgres) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "postgres",
		Server:   func() otp.Server { return &postgresServer{handle: p} },
		Shutdown: stopTimeout + 2*quitTimeout + 2*time.Second,
	}
}

// ConnConfig returns how to reach the running server, or ErrNotRunning. It is a Source.
// The caller owns the result and must not keep it, because it is invalid after the
// server's next start.
func (p *Postgres) ConnConfig(context.Context) (*pgx.ConnConfig, error) {
	cl := p.running.Load()
	if cl == nil {
		return nil, ErrNotRunning
	}
	return cl.connConfig(databaseName)
}

// postgresServer is one incarnation. It owns the server process and the open directory.
// When the actor crashes, the server is stopped, or the next incarnation adopts it.
type postgresServer struct {
	otp.Base
	handle  *Postgres
	cluster *cluster
	process *process
}

// ended is sent when a server's process has ended.
type ended struct{ process *process }

// Init brings the server up and returns when it answers.
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
