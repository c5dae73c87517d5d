package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
)

func newWorkersCommand(env environment) *cobra.Command {
	list := newWorkersListCommand(env)
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show the fleet and take workers out of it",
		Long: `Show the fleet and take workers out of it. Without a subcommand: list.

A drained worker gets no builds and finishes those that it has. It stays drained,
over restarts and new registrations, until it is resumed. A deleted worker is gone
at once: its builds are pending again and its tokens void; should it still run,
it may register anew.`,
		Args: cli.Arguments(cobra.NoArgs),
		RunE: list.RunE,
	}
	cmd.Flags().AddFlagSet(list.Flags())
	cmd.AddCommand(
		list,
		newWorkersShowCommand(env),
		newWorkerChangeCommand(env, "drain", "Give a worker no more builds", (*client.Client).Drain),
		newWorkerChangeCommand(env, "resume", "Give a drained worker builds again", (*client.Client).Resume),
		newWorkersDeleteCommand(env),
	)
	return cmd
}

func newWorkersListCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var f client.WorkerFilter
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List workers, the oldest first",
		Args:  cli.Arguments(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&f.Status, "status", "", "only workers that are idle, building or offline")
	cmd.Flags().IntVarP(&f.Limit, "limit", "n", 0, "at most so many; 0 for all")
	_ = cmd.RegisterFlagCompletionFunc("status",
		cobra.FixedCompletions([]string{"idle", "building", "offline"}, cobra.ShellCompDirectiveNoFileComp))
	return r.command(cmd, func(ctx context.Context, s *session, _ []string) error {
		list, err := again(ctx, s, func(ctx context.Context) (api.WorkerList, error) { return s.client.Workers(ctx, f) })
		if err != nil {
			return err
		}
		return s.Result(list.Workers, func(w io.Writer) {
			rows := [][]string{{"WORKER", "NAME", "STATUS", "BUILDS", "CPU", "DIAGNOSTICS", "DONE", "FAILED", "SEEN"}}
			for _, k := range list.Workers {
				rows = append(rows, []string{
					k.ID, cli.Plain(k.Name), workerStatus(k), strings.Join(k.Builds, ","), workerLoad(k), workerHealth(k),
					strconv.Itoa(k.Completed), strconv.Itoa(k.Failed), k.LastSeenAt,
				})
			}
			cli.Table(w, rows)
		})
	})
}

func workerStatus(w api.Worker) string {
	if w.Draining {
		return w.Status + ", draining"
	}
	return w.Status
}

func workerLoad(w api.Worker) string {
	if w.Telemetry == nil || w.Telemetry.CPUPercent == nil {
		return "-"
	}
	return strconv.FormatFloat(*w.Telemetry.CPUPercent, 'f', 0, 64) + "%"
}

func workerHealth(w api.Worker) string {
	if w.Diagnostics == nil {
		return "-"
	}
	return w.Diagnostics.Status
}

func newWorkersShowCommand(env environment) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a worker",
		Args:  cli.Arguments(cobra.ExactArgs(1)),
	}
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		worker, err := again(ctx, s, func(ctx context.Context) (api.Worker, error) { return s.client.Worker(ctx, args[0]) })
		if err != nil {
			return err
		}
		return showWorker(s, worker)
	})
}

func showWorker(s *session, k api.Worker) error {
	return s.Result(k, func(w io.Writer) {
		rows := [][]string{
			{"worker", k.ID},
			{"name", cli.Plain(k.Name)},
			{"status", workerStatus(k)},
			{"platforms", firstSet(strings.Join(k.Platforms, ", "), "all")},
			{"builds", fmt.Sprintf("%s (at most %d)", firstSet(strings.Join(k.Builds, ", "), "none"), k.MaxConcurrentBuilds)},
			{"completed", strconv.Itoa(k.Completed)},
			{"failed", strconv.Itoa(k.Failed)},
			{"registered", k.RegisteredAt},
			{"seen", k.LastSeenAt},
		}
		if t := k.Telemetry; t != nil {
			rows = append(rows, []string{"telemetry", fmt.Sprintf("%s: CPU %s, %s", t.At, workerLoad(k), cli.Plain(firstSet(t.Stage, t.Type)))})
		}
		if d := k.Diagnostics; d != nil {
			rows = append(rows, []string{"diagnostics", d.RunAt.Time().Format(time.RFC3339) + ": " + d.Status})
		}
		cli.Table(w, rows)
	})
}

// newWorkerChangeCommand is drain and resume.
func newWorkerChangeCommand(
	env environment, name, short string, change func(*client.Client, context.Context, string) (api.Worker, error),
) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{Use: name + " ID", Short: short, Args: cli.Arguments(cobra.ExactArgs(1))}
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		worker, err := again(ctx, s, func(ctx context.Context) (api.Worker, error) { return change(s.client, ctx, args[0]) })
		if err != nil {
			return err
		}
		return s.Result(worker, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", worker.ID, workerStatus(worker)) })
	})
}

func newWorkersDeleteCommand(env environment) *cobra.Command {
	r := remote{env: env}
	cmd := &cobra.Command{
		Use:   "delete ID",
		Short: "Remove a worker; its builds are pending again",
		Args:  cli.Arguments(cobra.ExactArgs(1)),
	}
	return r.command(cmd, func(ctx context.Context, s *session, args []string) error {
		// Once: a repeat would be told that there is no such worker.
		reply, err := s.client.DeleteWorker(ctx, args[0])
		if err != nil {
			return err
		}
		return s.Result(reply, func(w io.Writer) {
			fmt.Fprintf(w, "%s deleted, builds pending again: %d\n", args[0], reply.BuildsReassigned)
		})
	})
}
