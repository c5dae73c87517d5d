package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// atOnce is how many faults there may be at once.
const atOnce = 2

// fault is one kind of fault. The numbers from 0 to 1 decide where it is made and how
// long; busy is what no other fault may be at meanwhile.
type fault struct {
	name string
	busy func(d *drill, where float64) *sync.Mutex
	do   func(ctx context.Context, d *drill, where, length float64) error
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
		onNetwork("database", func(s *site) *proxy { return s.toDatabase }, slow, frozen, lost, cut, deaf, deaf),
		onNetwork("files", func(s *site) *proxy { return s.toFiles }, slow, frozen, lost, cut),
		onNetwork("clients", func(s *site) *proxy { return s.front }, slow, frozen, lost, cut),
		onDatabase("connections ended", false, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()`),
		onDatabase("builds locked", true, `SELECT FROM builds WHERE state IN ('pending', 'assigned', 'building') ORDER BY random() LIMIT 20 FOR UPDATE`),
		onDatabase("workers locked", true, `SELECT FROM workers ORDER BY random() LIMIT 5 FOR UPDATE`),
		onDatabase("snapshot held", true, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM builds`),
		{"database crashed", nil, crashDatabase},
		{"database restarted", func(d *drill, _ float64) *sync.Mutex { return &d.site.keeper.busy }, restartKeeper},
	}
}

// killWorker ends a worker within this process, without a word to takt.
func killWorker(_ context.Context, d *drill, where, _ float64) error {
	d.note("worker killed")
	d.seen.kill(where)
	return nil
}

func pick[T any](from []T, where float64) T {
	return from[min(int(where*float64(len(from))), len(from)-1)]
}

func (s *site) workerAt(where float64) *program { return pick(s.workers, where) }

func (s *site) controllerAt(where float64) *program { return &pick(s.controllers, where).program }

func atController(d *drill, where float64) *sync.Mutex { return &pick(d.site.controllers, where).busy }

// onProgram stops a process for a while, kills it, or ends it in order, which length
// decides.
func onProgram(name string, at func(s *site, where float64) *program) fault {
	return fault{
		name, func(d *drill, where float64) *sync.Mutex { return &at(d.site, where).busy },
		func(ctx context.Context, d *drill, where, length float64) error {
			p := at(d.site, where)
			now := p.now.Load()
			switch {
			case length < 0.5: // up to twice the time-out
				d.note("%s stopped for %.1f s", p.name, 4*length*silence.Seconds())
				if err := now.Signal(syscall.SIGSTOP); err != nil {
					return err
				}
				pause(ctx, time.Duration(4*length*float64(silence)))
				return now.Signal(syscall.SIGCONT)
			case length < 0.75:
				d.note("%s killed", p.name)
				now.Kill()
			default:
				d.note("%s ended", p.name)
				d.seen.failed(now.Stop(context.WithoutCancel(ctx), stopLimit))
			}
			d.seen.failed(crashed(now))
			return d.launch(ctx, p)
		},
	}
}

// launch starts the next process of p. What does not start is a broken promise.
func (d *drill) launch(ctx context.Context, p *program) error {
	err := p.launch(context.WithoutCancel(ctx), d.site.Dir)
	d.seen.failed(err)
	return err
}

// restartPart restarts a part of a controller's tree.
func restartPart(ctx context.Context, d *drill, where, length float64) error {
	c := pick(d.site.controllers, where)
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
	path := pick(paths, length)
	d.note("%s of %s restarted", path, c.name)
	_, err = operator.Operate(ctx, client.Order{Action: "restart", Path: path, Reason: "drill", Timeout: 30 * time.Second})
	if err != nil && ctx.Err() == nil && store.CodeOf(err) != store.Conflict && !d.excused(err) {
		d.seen.broke("restart %s of %s: %v", path, c.name, err)
	}
	return nil
}

// onNetwork makes one of the faults of a network for 0.5 to 8 s.
func onNetwork(name string, of func(*site) *proxy, all ...network) fault {
	var busy sync.Mutex
	return fault{"network of " + name, func(*drill, float64) *sync.Mutex { return &busy }, func(ctx context.Context, d *drill, where, length float64) error {
		took := 500*time.Millisecond + time.Duration(7.5*length*float64(time.Second))
		kind := pick(all, where)
		d.note("network of %s is %s for %.1f s", name, kind, took.Seconds())
		of(d.site).Suffer(ctx, kind, took)
		return nil
	}}
}

// onDatabase runs a statement beside takt; with hold its transaction stays open for 1 to
// 11 s.
func onDatabase(name string, hold bool, statement string) fault {
	var busy sync.Mutex
	return fault{name, func(*drill, float64) *sync.Mutex { return &busy }, func(ctx context.Context, d *drill, _, length float64) error {
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
			pause(ctx, time.Second+time.Duration(10*length*float64(time.Second)))
			_, err := c.Exec(ctx, "ROLLBACK")
			return err
		})
	}}
}

// crashDatabase kills a process of PostgreSQL, which makes all of them start anew.
func crashDatabase(ctx context.Context, d *drill, where, _ float64) error {
	return d.site.sql(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' ORDER BY pid")
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		if err != nil {
			return err
		}
		d.note("process of PostgreSQL killed")
		return syscall.Kill(int(pick(pids, where)), syscall.SIGKILL)
	})
}

// restartKeeper ends the process that PostgreSQL is a child of: in order, with PostgreSQL,
// or by a kill that PostgreSQL survives.
func restartKeeper(ctx context.Context, d *drill, where, _ float64) error {
	p := &d.site.keeper.program
	now := p.now.Load()
	if where < 0.5 {
		d.note("keeper of the database killed")
		now.Kill()
	} else {
		d.note("keeper of the database ended, with PostgreSQL")
		d.seen.failed(now.Stop(context.WithoutCancel(ctx), stopLimit))
	}
	d.seen.failed(crashed(now))
	return d.launch(ctx, p)
}

// String is for the drill's own log.
func (n network) String() string {
	return [...]string{"sound", "slow", "frozen", "losing data", "cut", "deaf to notifications"}[n]
}

// trouble makes faults until making ends, and returns when all are over. Each round takes
// the same numbers from chance, so that a seed is a plan.
func (d *drill) trouble(ctx, making context.Context) {
	all := d.faults
	places := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		pause(making, 200*time.Millisecond+time.Duration(d.chance.Int64N(int64(2*time.Second))))
		kind, where, length := all[d.chance.IntN(len(all))], d.chance.Float64(), d.chance.Float64()
		select {
		case places <- struct{}{}:
		case <-making.Done():
		}
		if making.Err() != nil {
			return
		}
		running.Go(func() {
			defer func() { <-places }()
			if kind.busy != nil {
				busy := kind.busy(d, where)
				if !busy.TryLock() {
					return
				}
				defer busy.Unlock()
			}
			if err := kind.do(ctx, d, where, length); err != nil {
				d.note("%s did not come about: %v", kind.name, err)
				return
			}
			d.seen.fault(kind.name)
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
