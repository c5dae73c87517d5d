package database

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// hostTimeout bounds an attempt to connect to several hosts, unless the URL says
	// connect_timeout.
	hostTimeout = 2 * time.Second
	// hostDelay is how much later each host in the URL is tried than the previous one.
	hostDelay = 100 * time.Millisecond
)

// hostPort is where a server listens.
type hostPort struct {
	host string
	port uint16
}

// hosts returns a configuration for each host of cfg, with its fallback without TLS.
func hosts(cfg *pgx.ConnConfig) (all []*pgx.ConnConfig) {
	last := hostPort{cfg.Host, cfg.Port}
	one := cfg.Copy()
	one.Fallbacks = nil
	all = append(all, one)
	for _, f := range cfg.Fallbacks {
		if at := (hostPort{f.Host, f.Port}); at != last {
			last = at
			one = cfg.Copy()
			one.Host, one.Port, one.TLSConfig, one.Fallbacks = f.Host, f.Port, f.TLSConfig, nil
			all = append(all, one)
			continue
		}
		one.Fallbacks = append(one.Fallbacks, f) // the same host without TLS
	}
	return all
}

// Hosts returns how many hosts a database URL names, 0 if it can't be read.
func Hosts(url string) int {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return 0
	}
	return len(hosts(cfg))
}

// dial connects to the first of cfg's hosts that accepts the connection. The configuration of
// the connection names only that host. The hosts are tried concurrently, so that one that hangs
// does not delay the others.
func dial(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	all := hosts(cfg)
	if len(all) == 1 {
		return connect(ctx, cfg)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(cfg.ConnectTimeout, hostTimeout), errors.New("no host of the database let takt in in time"))
	defer cancel()
	var (
		attempts sync.WaitGroup
		mu       sync.Mutex // guards what follows
		won      *pgx.Conn
		errs     []error
	)
	for i, one := range all {
		attempts.Go(func() {
			select {
			case <-time.After(time.Duration(i) * hostDelay):
			case <-ctx.Done():
			}
			conn, err := connect(ctx, one)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, err)
			case won == nil:
				won = conn
				cancel() // the other attempts
			default:
				hangUp(conn)
			}
		})
	}
	attempts.Wait()
	if won == nil {
		return nil, errors.Join(errs...)
	}
	return won, nil
}

func connect(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to the database: %w", err)
	}
	return conn, nil
}
