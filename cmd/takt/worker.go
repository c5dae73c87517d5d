package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/runner"
	"takt/store"
)

type workerOptions struct {
	exec, image     string
	engine          string
	network, user   string
	env             []string
	platforms       []string
	name            string
	stateDir        string
	idFile          string
	concurrency     int
	timeout         time.Duration
	keep            bool
	wait, heartbeat time.Duration
	grace, patience time.Duration
	unpackLimit     int64
	log             string
}

func newWorkerCommand(env environment) *cobra.Command {
	r := remote{env: env}
	var o workerOptions
	cmd := &cobra.Command{
		Use:   "worker --exec CMD | --image IMAGE",
		Short: "Run builds",
		Long: `Take builds from a controller and run a command for each of them.

The command runs in a clean directory that holds the unpacked source, with
  TAKT_BUILD_ID  TAKT_PLATFORM  TAKT_ATTEMPT
  TAKT_SOURCE    that directory
  TAKT_CERTS     the unpacked certificates, if there are any
  TAKT_OUTPUT    the file that it must produce
and else only PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_ALL, TZ, TMPDIR, and
what --env names. What it prints becomes the build's log. Exit code 0 and the
file at TAKT_OUTPUT make a completed build.

--exec runs CMD with sh -c, as the worker's own user: no sandbox. --image runs
each build in a container of its own: the image's command, or CMD if --exec is
given too.

The first SIGTERM or SIGINT makes the worker take no further builds, finish those
it has, and unregister. The second kills them and reports them as failed.`,
		Args: cli.Arguments(cobra.NoArgs),
	}
	o.addFlags(cmd)
	r.addFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := o.config(env)
		if err != nil {
			return cli.AsUsage(err)
		}
		s, err := r.open(cmd)
		if err != nil {
			return err
		}
		defer s.client.CloseIdle()
		if !strings.Contains(o.log, ",") && cli.Terminal(s.Err) && !s.JSON {
			o.log += ",console"
		}
		log, err := newLogger(s.Err, o.log)
		if err != nil {
			return cli.Usage("--log: %w", err)
		}
		w, err := runner.New(s.client, log, cfg)
		if err != nil {
			return cli.AsUsage(err)
		}
		ctx, stop := drainOnSignal(cmd.Context(), w)
		defer stop()
		return w.Run(ctx)
	}
	return cmd
}

func (o *workerOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.exec, "exec", "", "command to run for each build, given to sh -c")
	f.StringVar(&o.image, "image", "", "container image to run each build in")
	f.StringVar(&o.engine, "engine", "", "container engine (default: docker or podman, whichever is found first)")
	f.StringVar(&o.network, "network", "", "the container's network, such as none (default: the engine's)")
	f.StringVar(&o.user, "user", "", "the container's user (default: the image's)")
	f.StringArrayVar(&o.env, "env", nil, "NAME or NAME=value: a further variable for the command; may be repeated")
	f.StringSliceVarP(&o.platforms, "platform", "p", nil, "what to build: ios, android, or both (default both)")
	f.StringVar(&o.name, "name", "", "name shown to people (default: the host's)")
	f.StringVar(&o.stateDir, "state-dir", "", "id and builds of this worker (default: workers/NAME in the state directory)")
	f.StringVar(&o.idFile, "id-file", "", "file that holds the worker's id (default: worker-id in --state-dir)")
	f.IntVarP(&o.concurrency, "concurrency", "c", 1, "builds at once")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "time limit of a build's command")
	f.BoolVar(&o.keep, "keep", false, "leave the builds' directories in place")
	f.DurationVar(&o.wait, "poll-wait", 30*time.Second, "how long a poll may stay open, 1s to 60s")
	f.DurationVar(&o.heartbeat, "heartbeat", 15*time.Second, "time between a build's signs of life")
	f.DurationVar(&o.grace, "kill-grace", 10*time.Second, "time between SIGTERM and SIGKILL")
	f.DurationVar(&o.patience, "patience", 6*time.Hour, "how long to try to reach an absent controller with a result")
	f.Int64Var(&o.unpackLimit, "unpack-limit", 8<<30, "most bytes that an archive may unpack to")
	f.StringVar(&o.log, "log", "info", "level and format: debug|info|warn|error[,json|console] (default format: console on a terminal, else json)")
	complete(cmd, "platform", "ios", "android")
}

// config reports what is wrong with the flags, and else what they mean.
func (o *workerOptions) config(env environment) (runner.Config, error) {
	cfg := runner.Config{
		Name: o.name, Concurrency: o.concurrency, StateDir: o.stateDir, IDFile: o.idFile,
		Timeout: o.timeout, Keep: o.keep, PollWait: o.wait, Heartbeat: o.heartbeat,
		KillGrace: o.grace, Patience: o.patience,
		Limits: runner.UnzipLimits{Bytes: o.unpackLimit},
	}
	for _, p := range o.platforms {
		cfg.Platforms = append(cfg.Platforms, store.Platform(p))
	}
	if cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("--name: %w", err)
		}
		cfg.Name = host
	}
	if cfg.StateDir == "" {
		plain := regexp.MustCompile(`[^A-Za-z0-9_-]+`).ReplaceAllString(cfg.Name, "-")
		cfg.StateDir = filepath.Join(stateDir(env), "workers", plain)
	}
	var err error
	cfg.Command, err = o.command(env)
	return cfg, err
}

func (o *workerOptions) command(env environment) (runner.Command, error) {
	extra, err := variables(o.env, env)
	switch {
	case err != nil:
		return nil, err
	case o.image != "":
		engine := o.engine
		if engine == "" {
			if engine, err = runner.FindEngine(); err != nil {
				return nil, err
			}
		}
		host, _ := variables([]string{"PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "CONTAINER_HOST"}, env)
		return runner.Image{
			Engine: engine, Image: o.image, Script: o.exec,
			Network: o.network, User: o.user, Env: extra, HostEnv: host,
		}, nil
	case o.exec != "":
		base, _ := variables([]string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ"}, env)
		return runner.Exec{Script: o.exec, Env: append(base, extra...)}, nil
	default:
		return nil, cli.Usage("--exec or --image is needed")
	}
}

// variables looks up those that are named without a value; what is not set is
// left out. takt's keys are not passed on, whatever is asked for.
func variables(names []string, env environment) ([]string, error) {
	var out []string
	for _, entry := range names {
		name, value, given := strings.Cut(entry, "=")
		if name == "" || strings.HasPrefix(name, "TAKT_") || name == "CONTROLLER_API_KEY" {
			return nil, fmt.Errorf("--env: %q can't be set", name)
		}
		if !given {
			var set bool
			if value, set = env(name); !set {
				continue
			}
		}
		out = append(out, name+"="+value)
	}
	return out, nil
}

// drainOnSignal drains w at the first signal and ends the returned context at
// the second; a third ends the process.
func drainOnSignal(ctx context.Context, w *runner.Worker) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
			w.Drain()
		case <-ctx.Done():
			return
		}
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(fmt.Errorf("second signal: %s", s))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(context.Canceled)
	}
}
