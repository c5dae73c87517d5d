package database

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// prober asks the database whether it answers, on a connection beside the
// pool: a pool that is merely busy must not look like a database that is away.
// Safe for concurrent use.
type prober struct {
	cfg     *pgx.ConnConfig
	connect time.Duration // limit for a new connection
	answer  time.Duration // limit for an answer

	mu   sync.Mutex
	conn *pgx.Conn // nil while a check has it, and before the first
	busy bool      // a check has the connection
	over bool      // closed for good
}

// check returns nil if the database answers, on the old connection or a new
// one. One dead connection (ended by an operator, a restarted server) is not a
// dead database; fresh tells that it took a new one. A check that finds
// another one running leaves the answer to that.
func (p *prober) check(ctx context.Context) (fresh bool, err error) {
	conn, ok := p.take()
	if !ok {
		return false, nil
	}
	defer func() { p.give(conn) }()
	if conn != nil {
		if p.ping(ctx, conn) == nil {
			return false, nil
		}
		hangUp(conn)
	}
	conn, err = p.dial(ctx)
	return true, err
}

func (p *prober) ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.answer, errors.New("the database did not answer in time"))
	defer cancel()
	return conn.Ping(ctx)
}

func (p *prober) dial(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.connect, errors.New("the database did not let takt in in time"))
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, p.cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to the database: %w", err)
	}
	return conn, nil
}

func (p *prober) take() (*pgx.Conn, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy || p.over {
		return nil, false
	}
	conn := p.conn
	p.conn, p.busy = nil, true
	return conn, true
}

func (p *prober) give(conn *pgx.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = false
	if p.over && conn != nil {
		hangUp(conn)
		return
	}
	p.conn = conn
}

// close ends the prober; a running check closes its connection itself.
func (p *prober) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.conn != nil {
		hangUp(p.conn)
		p.conn = nil
	}
}

// hangUp closes a connection without a farewell, which could block.
func hangUp(conn *pgx.Conn) {
	_ = conn.PgConn().Conn().Close() // nothing depends on it
}
