package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"takt/cmd/internal/process"
	"takt/store/hubspot"
)

// naiveHooks is what takt's intake is compared with: a small server that checks
// the same signature, reads the same body and makes it durable with an INSERT of
// its own, into a table like takt's. It does less than takt: it keeps no queues
// and no jobs, knows no rates, and levels no load.
type naiveHooks struct {
	address string
	size    int // connections to PostgreSQL
	url     string
	pool    atomic.Pointer[pgxpool.Pool]
	stop    func()
}

// startNaiveHooks starts one on a free port.
func startNaiveHooks(ctx context.Context, host *controller) (*naiveHooks, error) {
	if err := host.db.exec(ctx, "CREATE TABLE naive_actions (LIKE action_executions INCLUDING ALL);"); err != nil {
		return nil, err
	}
	n := &naiveHooks{url: host.DatabaseURL()}
	if err := n.resize(ctx, 16); err != nil {
		return nil, err
	}
	e := echo.New()
	e.POST(hookPath, n.handle)
	address, stop, err := process.Serve(ctx, e)
	if err != nil {
		return nil, err
	}
	n.address = address
	n.stop = func() {
		stop()
		n.pool.Load().Close()
	}
	return n, nil
}

// resize gives it so many connections to PostgreSQL. Nobody uses it meanwhile.
func (n *naiveHooks) resize(ctx context.Context, size int) error {
	cfg, err := pgxpool.ParseConfig(n.url)
	if err != nil {
		return fmt.Errorf("connecting the naive server: %w", err)
	}
	cfg.MaxConns = int32(size)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connecting the naive server: %w", err)
	}
	if old := n.pool.Swap(pool); old != nil {
		old.Close()
	}
	n.size = size
	return nil
}

// tune leaves it with as many connections as it is fastest with.
func (n *naiveHooks) tune(ctx context.Context, measure take) error {
	best, size := 0.0, n.size
	for _, s := range []int{16, 32, connections} {
		if err := n.resize(ctx, s); err != nil {
			return err
		}
		got, err := measure(ctx, s)
		if err != nil {
			return err
		}
		if got.Rate() > best {
			best, size = got.Rate(), s
		}
	}
	return n.resize(ctx, size)
}

const naiveInsert = `INSERT INTO naive_actions (queue, portal_id, callback_id, expires_at)
VALUES ($1, $2, $3, now() + interval '7 days') ON CONFLICT (portal_id, callback_id) DO NOTHING`

func (n *naiveHooks) handle(c echo.Context) error {
	r := c.Request()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if err := hubspot.Verify(hookSecret, r.Method, hubspot.URI("", r), body, r.Header, time.Now()); err != nil {
		return echo.NewHTTPError(http.StatusUnauthorized, err.Error())
	}
	a, err := hubspot.ParseAction(body)
	if err != nil {
		return echo.NewHTTPError(http.StatusBadRequest, err.Error())
	}
	workflow, err := strconv.ParseInt(a.Queue.WorkflowID, 10, 64)
	if err != nil {
		return echo.NewHTTPError(http.StatusBadRequest, err.Error())
	}
	if _, err := n.pool.Load().Exec(r.Context(), naiveInsert, workflow, a.Queue.PortalID, a.CallbackID); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
