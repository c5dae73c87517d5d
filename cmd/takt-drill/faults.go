package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// maxConcurrentFaults is how many faults there may be at once.
const maxConcurrentFaults = 2

// fault is one kind of fault. Two numbers from 0 to 1 choose its target, and its magnitude:
// how long it lasts. target returns the lock of the target, which has one fault at a time.
type fault struct {
	name   string
	target func(d *drill, choice float64) *sync.Mutex
	inject func(ctx context.Context, d *drill, choice, magnitude float64) error
}

// faults are all kinds of faults; those that stand twice come twice as often.
func faults() []fault {
	return []fault{
		{"worker killed", nil, killWorker},
		{"worker killed", nil, killWorker},
		onProgram("worker process", (*site).workerAt),
		onProgram("controller process", (*site).controllerAt),
		onProgram("controller process", (*site).controllerAt),
		{"subsystem restarted", atController, restartPart},
		{"subsystem restarted", atController, restartPart},
		{"subsystem restarted", atController, restartPart},
		onNetwork("database", func(s *site) *proxy { return s.databaseProxy }, slow, frozen, blackholed, partitioned, muted, muted),
		onNetwork("files", func(s *site) *proxy { return s.s3Proxy }, slow, frozen, blackholed, partitioned),
		onNetwork("clients", func(s *site) *proxy { return s.clientProxy }, slow, frozen, blackholed, partitioned),
		onDatabase("connections ended", false, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()`),
		onDatabase("builds locked", true, `SELECT FROM builds WHERE state IN ('pending', 'assigned', 'building') ORDER BY random() LIMIT 20 FOR UPDATE`),
		onDatabase("workers locked", true, `SELECT FROM workers ORDER BY random() LIMIT 5 FOR UPDATE`),
		onDatabase("snapshot held", true, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM builds`),
		{"database crashed", nil, crashDatabase},
		{"database restarted", func(d *drill, _ float64) *sync.Mutex { return &d.site.databaseHost.busy }, restartDatabaseHost},
	}
}

// killWorker ends a worker within this process, without a word to takt.
func killWorker(_ context.Context, d *drill, choice, _ float64) error {
	d.note("worker killed")
	d.ledger.kill(choice)
	return nil
}

func pick[T any](from []T, choice float64) T {
	return from[min(int(choice*float64(len(from))), len(from)-1)]
}

func (s *site) workerAt(choice float64) *program { return pick(s.workers, choice) }

func (s *site) controllerAt(choice float64) *program { return &pick(s.controllers, choice).program }

func atController(d *drill, choice float64) *sync.Mutex {
	return &pick(d.site.controllers, choice).busy
}

// onProgram stops a process for a while, kills it, or ends it in order, which magnitude
// decides.
func onProgram(name string, at func(s *site, choice float64) *program) fault {
	return fault{
		name, func(d *drill, choice float64) *sync.Mutex { return &at(d.site, choice).busy },
		func(ctx context.Context, d *drill, choice, magnitude float64) error {
			p := at(d.site, choice)
			now := p.now.Load()
			switch {
			case magnitude < 0.5: // up to twice the time-out
				d.note("%s stopped for %.1f s", p.name, 4*magnitude*heartbeatTimeout.Seconds())
				if err := now.Signal(syscall.SIGSTOP); err != nil {
					return err
				}
				process.Pause(ctx, time.Duration(4*magnitude*float64(heartbeatTimeout)))
				return now.Signal(syscall.SIGCONT)
			case magnitude < 0.75:
				d.note("%s killed", p.name)
				now.Kill()
			default:
				d.note("%s ended", p.name)
				d.ledger.unexpected(now.Stop(context.WithoutCancel(ctx), stopLimit))
			}
			d.ledger.unexpected(crashed(now))
			return d.launch(ctx, p)
		},
	}
}

// launch starts the next process of p. What does not start is a broken promise.
func (d *drill) launch(ctx context.Context, p *program) error {
	err := p.launch(context.WithoutCancel(ctx), d.site.Dir)
	d.ledger.unexpected(err)
	return err
}

// restartPart restarts a part of a controller's tree.
func restartPart(ctx context.Context, d *drill, choice, magnitude float64) error {
	c := pick(d.site.controllers, choice)
	operator := c.serves.Load().Client
	root, err := operator.Tree(ctx, client.TreeOptions{})
	if err != nil {
		return err
	}
	var paths []string
	each(&root, func(n *api.TreeNode) {
		if n.Restart != "temporary" {
			paths = append(paths, n.Path)
		}
	})
	path := pick(paths, magnitude)
	d.note("%s of %s restarted", path, c.name)
	_, err = operator.Operate(ctx, client.Order{Action: "restart", Path: path, Reason: "drill", Timeout: 30 * time.Second})
	if err != nil && ctx.Err() == nil && store.CodeOf(err) != store.Conflict && !d.tolerated(err) {
		d.ledger.violation("restart %s of %s: %v", path, c.name, err)
	}
	return nil
}

// onNetwork makes one of the faults of a network for 0.5 to 8 s.
func onNetwork(name string, of func(*site) *proxy, all ...network) fault {
	var busy sync.Mutex
	return fault{"network of " + name, func(*drill, float64) *sync.Mutex { return &busy }, func(ctx context.Context, d *drill, choice, magnitude float64) error {
		took := 500*time.Millisecond + time.Duration(7.5*magnitude*float64(time.Second))
		kind := pick(all, choice)
		d.note("network of %s is %s for %.1f s", name, kind, took.Seconds())
		of(d.site).Inject(ctx, kind, took)
		return nil
	}}
}

// onDatabase runs a statement beside takt; with hold its transaction stays open for 1 to
// 11 s.
func onDatabase(name string, hold bool, statement string) fault {
	var busy sync.Mutex
	return fault{name, func(*drill, float64) *sync.Mutex { return &busy }, func(ctx context.Context, d *drill, _, magnitude float64) error {
		d.note("%s", name)
		return d.site.sql(ctx, func(ctx context.Context, c *pgx.Conn) error {
			if !hold {
				_, err := c.Exec(ctx, statement)
				return err
			}
			if _, err := c.Exec(ctx, "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
				return err
			}
			if _, err := c.Exec(ctx, statement); err != nil {
				return err
			}
			process.Pause(ctx, time.Second+time.Duration(10*magnitude*float64(time.Second)))
			_, err := c.Exec(ctx, "ROLLBACK")
			return err
		})
	}}
}

// crashDatabase kills a process of PostgreSQL, which makes all of them start anew.
func crashDatabase(ctx context.Context, d *drill, choice, _ float64) error {
	return d.site.sql(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' ORDER BY pid")
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		if err != nil {
			return err
		}
		d.note("process of PostgreSQL killed")
		return syscall.Kill(int(pick(pids, choice)), syscall.SIGKILL)
	})
}

// restartDatabaseHost ends the process that PostgreSQL is a child of: in order, with PostgreSQL,
// or by a kill that PostgreSQL survives.
func restartDatabaseHost(ctx context.Context, d *drill, choice, _ float64) error {
	p := &d.site.databaseHost.program
	now := p.now.Load()
	if choice < 0.5 {
		d.note("database host killed")
		now.Kill()
	} else {
		d.note("database host ended, with PostgreSQL")
		d.ledger.unexpected(now.Stop(context.WithoutCancel(ctx), stopLimit))
	}
	d.ledger.unexpected(crashed(now))
	return d.launch(ctx, p)
}

// String is for the drill's own log.
func (n network) String() string {
	return [...]string{"healthy", "slow", "frozen", "black-holed", "partitioned", "without notifications"}[n]
}

// injectFaults makes faults until injecting ends, and returns when all are over. Each round takes
// the same numbers from random, so that a seed is a plan.
func (d *drill) injectFaults(ctx, injecting context.Context) {
	all := d.faults
	places := make(chan struct{}, maxConcurrentFaults)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		process.Pause(injecting, 200*time.Millisecond+time.Duration(d.random.Int64N(int64(2*time.Second))))
		kind, choice, magnitude := all[d.random.IntN(len(all))], d.random.Float64(), d.random.Float64()
		select {
		case places <- struct{}{}:
		case <-injecting.Done():
		}
		if injecting.Err() != nil {
			return
		}
		running.Go(func() {
			defer func() { <-places }()
			if kind.target != nil {
				target := kind.target(d, choice)
				if !target.TryLock() {
					return
				}
				defer target.Unlock()
			}
			if err := kind.inject(ctx, d, choice, magnitude); err != nil {
				d.note("%s did not come about: %v", kind.name, err)
				return
			}
			d.ledger.count(func(r *report) { r.Faults[kind.name]++ })
		})
		if len(places) == 1 {
			d.check(ctx)
		}
	}
}

// note writes a line for whoever watches.
func (d *drill) note(format string, args ...any) {
	d.Note("%6.1f s  %s", time.Since(d.begun).Seconds(), fmt.Sprintf(format, args...))
}
