// Command takt-drill makes faults around takt while builds are submitted and built, and
// checks that every promise is kept. It starts bin/takt, which stands beside it: controllers
// on one PostgreSQL and one S3 server, and workers. The faults come from outside: signals
// to any process, proxies in front of PostgreSQL, S3 and the controllers, SQL beside takt,
// and orders to the supervision trees.
//
// # State
//
// A ledger of what was acknowledged to the drill's own clients. Everything else is in one
// temporary directory, removed when the drill passes.
//
// # Failure
//
// A promise that was not kept is noted, and the drill goes on. What cannot be started ends
// it.
//
// # Concurrency
//
// Up to two faults at once, beside submitters and workers. The ledger is shared. Every
// wait has a limit.
package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
)

func main() {
	os.Exit(cli.Execute(context.Background(), newRoot(), os.Args[1:], os.Stdout, os.Stderr))
}

// config says what to run.
type config struct {
	takt, s3    string
	controllers int
	length      time.Duration
	seed        uint64
	failover    bool
	json        bool
}

// newRoot returns the takt-drill command.
func newRoot() *cobra.Command {
	var cfg config
	root := &cobra.Command{
		Use:   "takt-drill",
		Short: "Make faults around takt under load and check that it keeps its promises",
		Long: `Make faults around takt under load and check that it keeps its promises.

A drill starts controllers on one PostgreSQL and one S3 server, submits builds and is the
fleet that builds them. Meanwhile it kills, stops and ends controllers and workers, breaks,
delays and freezes their connections to each other, to PostgreSQL and to S3, ends, locks
and crashes what is in PostgreSQL, and restarts random parts of the supervision trees.
Every build that was accepted has to end with its bytes, none may have two holders, no call
may fail but with 503 and Retry-After, nothing may crash, and what takt audit check checks
has to hold. With --failover the only fault is that the primary is killed, stopped or cut
off, its standby promoted, and that it comes back; takt has to serve 5 s after the promotion.
After the last fault the drill waits for builds of killed workers. Exit code 1
if a promise was broken.`,
		Args: cobra.NoArgs,
		RunE: cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			if cfg.length <= 0 || cfg.controllers < 1 {
				return cli.Usage("--duration and --controllers must be more than 0")
			}
			if cfg.seed == 0 {
				cfg.seed = rand.Uint64()
			}
			return perform(ctx, cfg, cli.Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: cfg.json})
		}),
	}
	flags := root.Flags()
	process.Flag(flags, &cfg.takt, os.Getenv("TAKT_BINARY"))
	flags.StringVar(&cfg.s3, "s3", installedS3(), "the S3 server to start, versitygw")
	flags.IntVar(&cfg.controllers, "controllers", 2, "how many controllers share the work")
	flags.DurationVar(&cfg.length, "duration", 2*time.Minute, "how long faults are made")
	flags.Uint64Var(&cfg.seed, "seed", 0, "which faults are made, and when; 0: random, and printed")
	flags.BoolVar(&cfg.failover, "failover", false, "only failovers of PostgreSQL, from a primary to its synchronous standby")
	flags.BoolVar(&cfg.json, "json", false, "the report as JSON, on one line")
	return root
}

// installedS3 returns the S3 server that `make setup-s3` has installed.
func installedS3() string {
	cache, _ := os.UserCacheDir()
	found, _ := filepath.Glob(filepath.Join(cache, "takt", "tools", "versitygw-*", "versitygw"))
	if len(found) == 0 {
		return "versitygw"
	}
	return found[len(found)-1]
}

// perform is one drill, from the start of the processes to the report. Workloads run beside
// the builds, until the last fault.
func perform(ctx context.Context, cfg config, out cli.Output, workloads ...func(context.Context, *drill)) error {
	return process.In("takt-drill", cfg.takt, out.Err, func(base process.Site) error {
		d := newDrill(out, &site{Site: base}, cfg.seed)
		d.faults = faults()
		if cfg.failover {
			d.faults = failovers()
			workloads = append(workloads, webhooks, deployments)
		}
		err := must.Try(func() {
			d.site.open(ctx, cfg)
			d.site.startWorkers(ctx, workerProcesses)
			d.run(ctx, cfg.length, workloads)
		})
		ended := d.site.close(ctx)
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		d.ledger.unexpected(ended)
		r := d.ledger.report()
		r.Seed, r.Seconds = cfg.seed, cfg.length.Seconds()
		err = out.Result(r, r.print)
		if err == nil && len(r.Broken) > 0 {
			err = process.ErrBroken
		}
		return err
	})
}
