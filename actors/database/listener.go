package database

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store/backoff"
)

// Channel is the PostgreSQL channel of all takt's notifications. A notification's payload is a
// topic, or a topic, a space and an argument: "job:available ios".
const Channel = "takt"

const (
	// listenTimeout bounds one attempt to connect.
	listenTimeout = 5 * time.Second
	// listenAnswer bounds one answer.
	listenAnswer = 2 * time.Second
)

// ListenerConfig has the listener's settings. Zero values mean the defaults.
type ListenerConfig struct {
	// Source is required.
	Source Source
	// Version is the controller's, which the others read from the name of the connection.
	Version string
	// Bus gets each notification: its topic and the rest of its payload. It also gets
	// listener:resumed whenever the listener has connected. Earlier notifications may be lost,
	// so subscribers then read again what they cache. Required.
	Bus pubsub.Bus
	// AskEvery is how long the connection may be silent before it is checked.
	// Defaults to 15 seconds.
	AskEvery time.Duration
	// Backoff is the wait between attempts. Defaults to 1 to 30 seconds.
	Backoff backoff.Backoff
}

// Listener is the handle of the listener. It is safe for concurrent use. It is a PoolUser of the
// pool, so that it connects as soon as there is a pool again.
type Listener struct {
	cfg  ListenerConfig
	proc atomic.Pointer[otp.Proc]
	// awaken ends the wait for the next notification; nil before the first one.
	awaken atomic.Pointer[context.CancelCauseFunc]
}

// NewListener returns the handle of the listener that the child of Spec will run.
func NewListener(cfg ListenerConfig) *Listener {
	cfg.AskEvery = cmp.Or(cfg.AskEvery, 15*time.Second)
	cfg.Backoff.Min = cmp.Or(cfg.Backoff.Min, firstRetry)
	return &Listener{cfg: cfg}
}

// Spec returns the specification of the listener's actor.
func (l *Listener) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:     "listener",
		Server: func() otp.Server { return &listenerServer{handle: l, cfg: l.cfg} },
	}
}

// Use makes a listener that waits to retry connect now. One that is connected checks its
// connection, because that may be to a host that hangs.
func (l *Listener) Use(*pgxpool.Pool) {
	if proc := l.proc.Load(); proc != nil {
		otp.Cast(proc, reconnect{})
	}
	if awaken := l.awaken.Load(); awaken != nil {
		(*awaken)(errSilent)
	}
}

// Drop does nothing, because the listener detects a loss itself.
func (*Listener) Drop(error) {}

// The messages of the listener, casts.
type (
	listening struct{} // the job is connected
	reconnect struct{} // the database is back
)

// listenerServer is the listener actor.
type listenerServer struct {
	otp.Base
	handle   *Listener
	cfg      ListenerConfig
	listens  otp.Job[any] // has the connection
	failures int          // attempts since the last success
}

// Init begins to connect but does not wait, because nothing depends on notifications.
func (s *listenerServer) Init(c *otp.Ctx) error {
	s.handle.proc.Store(c.Self())
	l, self := s.handle, c.Self()
	s.listens = otp.Job[any]{
		Begin: func() func(context.Context) (any, error) {
			return func(ctx context.Context) (any, error) {
				return nil, l.listen(ctx, func() { otp.Cast(self, listening{}) })
			}
		},
		Done: s.silenced, Outage: describe,
	}
	s.listens.Start(c)
	return nil
}

// HandleCast handles messages from other goroutines.
func (s *listenerServer) HandleCast(c *otp.Ctx, msg any) {
	switch msg.(type) {
	case listening:
		s.failures = 0
		c.Resume()
		s.cfg.Bus.Publish(pubsub.ListenerResumed, nil)
	case reconnect:
		s.listens.Start(c)
	default:
		s.Base.HandleCast(c, msg)
	}
}

// silenced handles the end of the connection, or a failed attempt. There is no pause if Use was
// called meanwhile.
func (s *listenerServer) silenced(c *otp.Ctx, _ any, err error) (next time.Duration) {
	next = s.cfg.Backoff.Wait(s.failures)
	if s.listens.Outdated() {
		next = 0
	}
	s.failures++
	c.Logger().Warn().Err(err).Dur("retry_in", next).Msg("not receiving database notifications; retrying")
	return next
}

// Terminate clears the handle. The goroutine ends by its context.
func (s *listenerServer) Terminate(c *otp.Ctx, _ error) {
	s.handle.proc.CompareAndSwap(c.Self(), nil)
}

// listen connects and publishes notifications until the connection or ctx ends.
func (l *Listener) listen(ctx context.Context, connected func()) error {
	cfg := l.cfg
	conn, err := subscribe(ctx, cfg)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	connected()
	for {
		n, err := l.next(ctx, conn)
		switch {
		case err == nil:
			topic, argument, _ := strings.Cut(n.Payload, " ")
			cfg.Bus.PublishRemote(topic, argument, n.PID)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errSilent):
			return fmt.Errorf("listening: %w", err)
		default:
			// A connection that a firewall has dropped would stay silent forever.
			if err := ask(ctx, conn); err != nil {
				return fmt.Errorf("listening: %w", err)
			}
		}
	}
}

// errSilent means that no notification arrived for AskEvery, or that Use was called.
var errSilent = errors.New("no notification for a while")

// next waits for a notification. After AskEvery, or when Use is called, it fails with
// errSilent; the connection can then still be used.
func (l *Listener) next(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	waiting, cancel := context.WithTimeoutCause(ctx, l.cfg.AskEvery, errSilent)
	defer cancel()
	waiting, awaken := context.WithCancelCause(waiting)
	defer awaken(nil)
	l.awaken.Store(&awaken)
	n, err := conn.WaitForNotification(waiting)
	if err != nil {
		if waiting.Err() != nil && !conn.IsClosed() {
			return nil, context.Cause(waiting)
		}
		return nil, err
	}
	return n, nil
}

// subscribe connects and listens.
func subscribe(ctx context.Context, cfg ListenerConfig) (*pgx.Conn, error) {
	address, err := cfg.Source(ctx)
	if err != nil {
		return nil, err
	}
	address = address.Copy()
	address.RuntimeParams["application_name"] = strings.TrimSpace("takt listener " + cfg.Version) // each controller has one, and so they are counted
	ctx, cancel := context.WithTimeoutCause(ctx, listenTimeout, errors.New("the database did not let the listener in in time"))
	defer cancel()
	conn, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+Channel); err != nil {
		hangUp(conn)
		return nil, fmt.Errorf("listening: %w", err)
	}
	return conn, nil
}

func ask(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, listenAnswer, errors.New("the database did not answer the listener in time"))
	defer cancel()
	return conn.Ping(ctx)
}
