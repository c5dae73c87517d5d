// Command takt-attack plays attackers who have one low key, and measures what others notice
// of them. It starts bin/takt, which stands beside it, anew for each attack. The attacker is a
// process of its own, with half a core or without limit, and has another loopback address than
// its victims: somebody with another key who sends twenty requests a second, an operator, and
// probes.
//
// # State
//
// One temporary directory, removed when all promises were kept.
//
// # Failure
//
// A promise that was not kept stands in the table, and the next attack follows. What cannot be
// started ends the program.
//
// # Concurrency
//
// One attack at a time. Each request of a victim has its own goroutine, because a slow reply
// must not make the victim send less.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
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
	takt        string
	only, modes []string
	size        string
	json        bool
}

// size is how much is done.
type size struct {
	before, during, after time.Duration
	// settle is the time after the end of an attack in which others may still notice it.
	settle time.Duration
	// workers have label sets of their own; links and entries are those of the archives.
	workers, classes, links, entries int
	// timed is false if times are only shown, because the machine does something else, too.
	timed bool
}

func sizes() map[string]size {
	return map[string]size{
		"full": {
			before: 10 * time.Second, during: 20 * time.Second, after: 10 * time.Second, settle: 5 * time.Second,
			workers: 10_000, classes: 255, links: 150_000, entries: 2_000_000, timed: true,
		},
		"small": {
			before: time.Second, during: 2 * time.Second, after: time.Second, settle: 200 * time.Millisecond,
			workers: 300, classes: 255, links: 20_000, entries: 600_000,
		},
	}
}

const (
	limited   = "half a core"
	unlimited = "no limit"
)

// newRoot returns the takt-attack command.
func newRoot() *cobra.Command {
	var cfg config
	root := &cobra.Command{
		Use:   "takt-attack",
		Short: "Attack takt with low keys and measure what others notice",
		Long: `Attack takt with low keys and measure what others notice.

` + describe() + `
An attacker with half a core may not make a victim be refused, nor its p99 exceed three times
what it was before, or 100 ms; operators and probes are answered within a second. An attacker
without limit may not make a victim be refused either, and all is as before 5 s after it has
stopped. A worker holds its limits of disk, and takes at most 64 MiB of memory and 600 bytes for
each of the 500 000 entries that an archive may have. Exit code 1 if a promise was broken.`,
		Args: cobra.NoArgs,
		RunE: cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			if _, ok := sizes()[cfg.size]; !ok {
				return cli.Usage("--size must be full or small, got %q", cfg.size)
			}
			for _, name := range cfg.only {
				if find(name) == nil {
					return cli.Usage("there is no attack %q: %s", name, strings.Join(names(), ", "))
				}
			}
			for _, m := range cfg.modes {
				if m != limited && m != unlimited {
					return cli.Usage("--modes are %q and %q, got %q", limited, unlimited, m)
				}
			}
			return perform(ctx, cfg, cli.Output{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: cfg.json})
		}),
	}
	flags := root.Flags()
	process.Flag(flags, &cfg.takt, os.Getenv("TAKT_BINARY"))
	flags.StringSliceVar(&cfg.only, "only", nil, "only these attacks: "+strings.Join(names(), ", "))
	flags.StringSliceVar(&cfg.modes, "modes", []string{limited, unlimited}, "how much of the processor the attacker gets")
	flags.StringVar(&cfg.size, "size", "full", "full; or small, which takes seconds and judges no times")
	flags.BoolVar(&cfg.json, "json", false, "the table as JSON, on one line")
	root.AddCommand(newPlay())
	return root
}

// newPlay returns the command that is the attacker.
func newPlay() *cobra.Command {
	return &cobra.Command{
		Use: "play FILE", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
			return play(ctx, args[0], cmd.OutOrStdout())
		}),
	}
}

// perform makes all attacks that were asked for and prints the table.
func perform(ctx context.Context, cfg config, out cli.Output) error {
	return process.In("takt-attack", cfg.takt, out.Err, func(base process.Site) error {
		var rows []row
		broken := false
		for _, a := range attacks() {
			if len(cfg.only) > 0 && !slices.Contains(cfg.only, a.name) {
				continue
			}
			for _, mode := range cfg.modes {
				fmt.Fprintf(out.Err, "%s, %s\n", a.name, mode)
				var r row
				if err := must.Try(func() { r = attackOnce(ctx, base, a, mode, sizes()[cfg.size]) }); err != nil {
					return fmt.Errorf("%s, %s: %w", a.name, mode, err)
				}
				rows, broken = append(rows, r), broken || len(r.Broken) > 0
			}
		}
		err := out.Result(rows, table(rows))
		if err == nil && broken {
			err = process.ErrBroken
		}
		return err
	})
}
