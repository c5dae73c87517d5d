package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// recoveryLimit is how long builds may take after the last fault.
const recoveryLimit = time.Minute + 4*heartbeatTimeout

// report is the result of a drill.
type report struct {
	Seed    uint64         `json:"seed"`
	Seconds float64        `json:"seconds"`
	Faults  map[string]int `json:"faults"`
	// Accepted builds are those that a controller has acknowledged.
	Accepted  int `json:"accepted"`
	Completed int `json:"completed"`
	// Repeated is the number of calls that were refused for a while or got no reply, and
	// LongestWait is how long one call took with its repeats, in seconds.
	Repeated    int     `json:"repeated"`
	LongestWait float64 `json:"longest_wait"`
	LongestCall string  `json:"longest_call"`
	// LongestTakeover is the longest time from a promotion to the first build that a controller
	// took, in seconds.
	LongestTakeover float64 `json:"longest_takeover,omitempty"`
	Webhooks        int     `json:"webhooks,omitempty"`
	Deployments     int     `json:"deployments,omitempty"`
	// Broken lists the promises that were not kept, and Steps what happened to the builds that
	// they are about.
	Broken []string `json:"broken"`
	Steps  []string `json:"steps,omitempty"`
}

func (r report) print(w io.Writer) {
	var faults []string
	for name, n := range r.Faults {
		faults = append(faults, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(faults)
	fmt.Fprintf(w, "drill     %g s with seed %d\n", r.Seconds, r.Seed)
	fmt.Fprintf(w, "faults    %s\n", strings.Join(faults, ", "))
	fmt.Fprintf(w, "builds    %d accepted, %d completed with their bytes\n", r.Accepted, r.Completed)
	fmt.Fprintf(w, "calls     %d repeated, the longest wait %.1f s: %s\n", r.Repeated, r.LongestWait, store.Lines(r.LongestCall))
	if r.LongestTakeover > 0 {
		fmt.Fprintf(w, "failover  served at most %.1f s after a promotion; %d webhooks completed, %d deployments made\n", r.LongestTakeover, r.Webhooks, r.Deployments)
	}
	fmt.Fprintf(w, "broken    %d\n", len(r.Broken))
	const most = 20
	for _, text := range r.Broken[:min(most, len(r.Broken))] {
		fmt.Fprintf(w, "  %s\n", store.Lines(text))
	}
	for _, step := range r.Steps {
		fmt.Fprintf(w, "  %s\n", store.Lines(step))
	}
	if more := len(r.Broken) - most; more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}

// drill is one run.
type drill struct {
	cli.Output
	faults   []fault
	site     *site
	seed     uint64
	random   *rand.Rand // faults only
	begun    time.Time
	ledger   *ledger
	recovery time.Duration
}

func newDrill(out cli.Output, s *site, seed uint64) *drill {
	return &drill{Output: out, site: s, seed: seed, random: newRandom(seed, 0), begun: time.Now(), ledger: newLedger(), recovery: recoveryLimit}
}

// chance returns the nth sequence of random numbers of a seed.
func newRandom(seed, n uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, n))
}

// run makes faults for as long as length, with workloads beside them, and returns when
// everything is checked.
func (d *drill) run(ctx context.Context, length time.Duration, workloads []func(context.Context, *drill)) {
	d.begun, d.ledger.begun = time.Now(), time.Now()
	d.Note("drill with seed %d", d.seed)
	injecting, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	working, stopWorkers := context.WithCancelCause(ctx)
	var submitting, building sync.WaitGroup
	for i := range simulatedWorkers {
		building.Go(func() { d.workerLoop(working, newRandom(d.seed, uint64(100+i))) })
	}
	for i := range submitters {
		submitting.Go(func() { d.submit(ctx, injecting.Done(), newRandom(d.seed, uint64(200+i))) })
	}
	for _, f := range workloads {
		submitting.Go(func() { f(injecting, d) })
	}
	d.injectFaults(ctx, injecting)
	submitting.Wait()
	d.verify(ctx)
	stopWorkers(errors.New("the drill is over"))
	building.Wait()
	d.inspect(ctx)
}

// check checks the invariants of the database.
func (d *drill) check(ctx context.Context) {
	_ = d.retry(ctx, "invariants", func(ctx context.Context) error {
		found, err := client.Call(ctx, d.site.client, api.CheckInvariants, api.None{})
		for _, i := range found.Invariants {
			if i.Broken > 0 {
				d.ledger.violation("%s %s", i.Promise, strings.Join(i.Examples, ", "))
			}
		}
		return err
	})
}

// sqlTwice finds builds that were given to a worker while another had them, or whose result
// is not that of their last attempt, by the lines that each step has written in its own
// transaction. A build that is pending again takes the result of its last holder.
const sqlTwice = `SELECT DISTINCT b.id FROM builds b JOIN (
		SELECT build, kind, format('%s %s', worker, attempt) AS who, lag(kind) OVER w AS before, lag(format('%s %s', worker, attempt)) OVER w AS other
		FROM build_logs WHERE kind IN ('assigned', 'requeued', 'completed', 'failed', 'cancelled')
		WINDOW w AS (PARTITION BY build ORDER BY seq)) l ON l.build = b.seq
	WHERE l.kind = 'assigned' AND l.before <> 'requeued'
		OR l.kind = 'completed' AND (l.before NOT IN ('assigned', 'requeued') OR l.who <> l.other)`

// inspect checks what is left after the drill: the database, and processes of which
// nothing has crashed.
func (d *drill) inspect(ctx context.Context) {
	d.check(ctx)
	d.ledger.unexpected(d.site.sql(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, sqlTwice)
		twice, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, id := range twice {
			d.ledger.violation("%s was held by two workers, or has the result of another attempt", id)
		}
		if err == nil {
			err = d.explain(ctx, c, append(d.ledger.violatedBuilds, twice...))
		}
		return err
	}))
	for _, p := range d.site.all() {
		if now := p.now.Load(); !now.Alive() {
			d.ledger.violation("%s has ended by itself: %v", p.name, now.Failure())
		}
	}
	all := d.site.controllers
	if d.site.databaseHost != nil {
		all = append(all, d.site.databaseHost)
	}
	for _, c := range all {
		limited, cancel := context.WithTimeoutCause(ctx, d.recovery, fmt.Errorf("not well %s after the last fault", d.recovery))
		states := ""
		d.ledger.unexpected(c.serves.Load().Await(limited, c.name+" to be well", func() string { return states }, func(ctx context.Context) (bool, error) {
			root, err := c.serves.Load().Client.Tree(ctx, client.TreeOptions{})
			states = ""
			each(&root, func(n *api.TreeNode) {
				if n.Status != "running" {
					states += n.Path + " " + n.Status + " "
				}
				if n.Leaked > 0 || n.Restarts > 0 {
					err = fmt.Errorf("%s of %s has %d crashes and %d leaked processes: %s", n.Path, c.name, n.Restarts, n.Leaked, n.LastExit)
				}
			})
			well := err == nil && states == ""
			if d.tolerated(err) {
				err = nil
			}
			return well, err
		}))
		cancel()
	}
}

// explain notes the steps of builds of which a promise was broken.
func (d *drill) explain(ctx context.Context, c *pgx.Conn, builds []string) error {
	rows, _ := c.Query(ctx, `SELECT concat_ws(' ', b.id, to_char(l.at, 'HH24:MI:SS.MS'), l.kind, l.worker, l.attempt, l.facts)
		FROM build_logs l JOIN builds b ON b.seq = l.build WHERE b.id = ANY ($1) AND l.kind IS NOT NULL ORDER BY l.build, l.seq`, builds)
	steps, err := pgx.CollectRows(rows, pgx.RowTo[string])
	d.ledger.count(func(r *report) { r.Steps = steps })
	return err
}

// each calls f with n and all nodes under it.
func each(n *api.TreeNode, f func(n *api.TreeNode)) {
	f(n)
	for i := range n.Children {
		each(&n.Children[i], f)
	}
}

// tolerated reports whether a call may be repeated after err, and records a reply that no
// fault excuses. A worker's id is refused until the life before it counts as silent, which
// takes a while without an outage of the database.
func (d *drill) tolerated(err error) bool {
	if store.CodeOf(err) == store.DuplicateWorker {
		return true
	}
	if !client.Temporary(err) {
		return false
	}
	if status := client.StatusOf(err); status >= 500 && (status != 503 || client.RetryAfter(err) == 0) {
		d.ledger.violation("%v", err)
	}
	return true
}

// retry makes a call until it succeeds, and records the error with which it fails for
// good, or that it has not succeeded for long.
func (d *drill) retry(ctx context.Context, what string, call func(context.Context) error) error {
	begun, repeats := time.Now(), 0
	limited, cancel := context.WithTimeoutCause(ctx, 2*d.recovery, fmt.Errorf("no answer for %s", 2*d.recovery))
	defer cancel()
	retry := client.Retry{Temporary: d.tolerated, OnWait: func(error, time.Duration) { repeats++ }}
	retry.Min, retry.Max = 100*time.Millisecond, time.Second
	err := retry.Do(limited, call)
	took := time.Since(begun).Seconds()
	d.ledger.count(func(r *report) {
		if r.Repeated += repeats; repeats > 0 && took > r.LongestWait {
			r.LongestWait, r.LongestCall = took, what
		}
	})
	if err != nil && ctx.Err() == nil {
		d.ledger.violation("%s: %v", what, err)
	}
	return err
}

// verify waits until every accepted build has ended, and compares its result. Only the
// wait is bounded, because the time to compare all results depends on their number; a
// controller that no longer answers ends it.
func (d *drill) verify(ctx context.Context) {
	accepted := d.ledger.accepted()
	d.note("no more faults, %d builds to check", len(accepted))
	end := time.Now().Add(d.recovery)
	checks, working := errgroup.WithContext(ctx)
	checks.SetLimit(simulatedWorkers)
	for id, want := range accepted {
		checks.Go(func() error {
			limited, cancel := context.WithTimeoutCause(working, 2*d.recovery, fmt.Errorf("no answer for %s", 2*d.recovery))
			defer cancel()
			err := d.verifyBuild(limited, id, want, end)
			if err == nil {
				d.ledger.count(func(r *report) { r.Completed++ })
				return nil
			}
			unanswered := context.Cause(limited) // that ends the other checks, whose errors are of no interest then
			if working.Err() == nil {
				d.ledger.violation("%s: %v", id, cmp.Or(unanswered, err))
			}
			return unanswered
		})
	}
	_ = checks.Wait() // what fails is recorded
}

// verifyBuild compares the result of a build, which has to end before end.
func (d *drill) verifyBuild(ctx context.Context, id string, want [sha256.Size]byte, end time.Time) error {
	for {
		var now api.BuildStatus
		if err := d.retry(ctx, "status of "+id, func(ctx context.Context) (err error) {
			now, err = d.site.client.Status(ctx, id, client.BuildAuth{})
			return err
		}); err != nil {
			return err
		}
		if store.BuildState(now.Status).Final() {
			if now.Status != string(store.Completed) {
				return fmt.Errorf("ended %s", now.Status)
			}
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("not ended %s after the last fault", d.recovery)
		}
		process.Pause(ctx, time.Second)
	}
	got, err := d.fetch(ctx, func(ctx context.Context, to client.Target) error {
		return d.retry(ctx, "result of "+id, func(ctx context.Context) error {
			_, err := d.site.client.Download(ctx, id, client.BuildAuth{}, to, client.FetchOptions{Retry: client.Retry{Attempts: 1}})
			return err
		})
	})
	if err == nil && sha256.Sum256(got) != want {
		err = fmt.Errorf("its result is not the one that was built: %d bytes", len(got))
	}
	return err
}

// fetch returns what download has written to a file, where it goes on after each fault.
func (d *drill) fetch(ctx context.Context, download func(context.Context, client.Target) error) ([]byte, error) {
	f, err := os.CreateTemp(d.site.Dir, "fetched-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer os.Remove(f.Name())
	if err := download(ctx, f); err != nil {
		return nil, err
	}
	return os.ReadFile(f.Name())
}
