package main

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"takt/cmd/internal/must"
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
}

// startNaiveHooks starts one on a free port, until the measurement ends.
func startNaiveHooks(ctx context.Context, r *run, host *controller) *naiveHooks {
	host.db.exec(ctx, "CREATE TABLE naive_actions (LIKE action_executions INCLUDING ALL);")
	n := &naiveHooks{url: host.DatabaseURL()}
	n.resize(ctx, 16)
	e := echo.New()
	e.POST(hookPath, n.handle)
	address, stop, err := process.Serve(ctx, e)
	must.Do(err)
	n.address = address
	r.atEnd(func() error {
		stop()
		n.pool.Load().Close()
		return nil
	})
	return n
}

// resize gives it so many connections to PostgreSQL. Nobody uses it meanwhile.
func (n *naiveHooks) resize(ctx context.Context, size int) {
	cfg := must.Get(pgxpool.ParseConfig(n.url))
	cfg.MaxConns = int32(size)
	if old := n.pool.Swap(must.Get(pgxpool.NewWithConfig(ctx, cfg))); old != nil {
		old.Close()
	}
	n.size = size
}

// tune leaves it with as many connections as it is fastest with.
func (n *naiveHooks) tune(ctx context.Context, measure take) {
	best, size := 0.0, n.size
	for _, s := range []int{16, 32, connections} {
		n.resize(ctx, s)
		if rate := measure(s).Rate(); rate > best {
			best, size = rate, s
		}
	}
	n.resize(ctx, size)
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
