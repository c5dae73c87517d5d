package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/otlp"
	"takt/cmd/internal/runner"
	"takt/http/api"
	"takt/store"
	"takt/store/metrics"
)

// workerOptions are the flags of takt worker that are not part of a [runner.Config].
type workerOptions struct {
	runner.Config
	image     runner.Image
	exec      string
	users     []string
	env       []string
	platforms []string
	labels    []string
	log       string
	enroll    string
	otlp      string
}

// Worker returns takt worker.
func Worker(env cli.Environment) *cobra.Command {
	r := cli.Remote{Env: env}
	var o workerOptions
	cmd := &cobra.Command{
		Use: "worker --exec CMD | --image IMAGE", Short: "Run builds", Args: cobra.NoArgs,
		Long: `Take builds from a controller and run a command for each of them.

The command runs in a clean directory that holds the unpacked source, with
  TAKT_BUILD_ID  TAKT_PLATFORM  TAKT_ATTEMPT
  TAKT_SOURCE    that directory
  TAKT_CERTS     the unpacked certificates, if there are any
  TAKT_OUTPUT    the file that it must write
  TAKT_PARAMS    a JSON file with the build's parameters, if there are any
  TAKT_SECRETS   the directory with its secrets that are files, if there are any
  TAKT_COMMIT  TAKT_BRANCH  TAKT_SUBMITTER  TAKT_LABEL_NAME   as far as they are known
Otherwise it gets only PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_ALL, TZ, TMPDIR, the
variables that --env names, the build's parameters that --accept-env permits, and its
secrets. A build with another parameter fails before the command starts, unless it was
submitted with --env-optional. Its output becomes the build's log. The build is completed
if the command ends with exit code 0 and the file at TAKT_OUTPUT exists.

--exec runs CMD with sh -c. That is no sandbox, but the command has a process group of
its own and does not get the worker's keys. If takt runs as root, --user names the users
that builds run as, one for each of the --concurrency builds. Nothing else may use these
users: all of their processes are killed before and after each build.

--image runs each build in a container of its own, with the image's command, or with CMD
if --exec is given too. The image is pulled when the worker starts; the oldest of those
pulled are removed when they take up more than --image-cache. --image from-job takes the
image that the controller names (its --base-image-id), if --allow-image permits it. While
the image is not permitted or can't be pulled, the worker gives builds back and pauses.

A container has only the capabilities of --image-cap, gains none from setuid programs, and
has at most 4096 processes and threads. By default it uses the engine's network, from which
it can reach whatever this machine can reach; --network none prevents that.

Builds with secrets run only where other builds can't read them: with --image or --user, or
if --accept-secrets says so. Files with secrets are removed after the build, also if the worker
is killed. In the log, error texts and reports, secrets are masked (docs/security.md says what
can't be). Values of variables never stand in arguments.

--timeout, --cpus, --memory and --disk limit each build; a build that exceeds one fails
with an error that names it. A build may bring a time limit of its own, up to --max-timeout. The container engine enforces CPU and memory limits, or with
--exec cgroup v2, if the worker's cgroup was delegated to it (Delegate=yes in its systemd
unit). Where neither is possible, the worker says so when it starts, in its diagnostics and in
each build's log. --disk counts the build's directory, TMPDIR included, and what its
container writes elsewhere, about once a second.

The worker checks when it starts and before each build that the command or the engine is
available. If not, it gives the build back and pauses until it is available again; takt
workers shows that. A worker that stops in this state, or can't start, ends with exit
code 7. A build is also given back, for another worker, if its command can't be started or
if the engine or a full disk makes it fail before its command begins. A worker to which
that happens often is quarantined (takt serve --quarantine). The exit code of the build
command itself, 126 and 127 included, never counts against the worker.

The worker sends a diagnostic report when it starts, when it becomes unable or able to run
builds, and on SIGUSR1; takt workers shows the verdict. During a build, takt workers and
the dashboard show the machine's processor, memory and disk, and the phase of the build.

With --enroll the worker gets a key of its own, which permits only to be this worker and
can be revoked alone. The token can be used once, and is not needed again. The key is kept in
--state-dir, where builds of the worker's own user can read it; takt worker enroll keeps it
from them. The worker warns of a key that builds can read.

On the first SIGTERM or SIGINT the worker takes no more builds, finishes those that it
has, and unregisters. On the second it kills them and reports them as failed.`,
	}
	o.addFlags(cmd)
	r.AddFlags(cmd.Flags())
	cmd.AddCommand(newWorkerEnrollCommand(env))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("accept-secrets") {
			o.AcceptSecrets = o.image.Image != "" || len(o.users) > 0
		}
		if o.Concurrency < 1 { // in a Config, 0 is the default
			return cli.Usage("--concurrency %d: want at least 1", o.Concurrency)
		}
		if err := o.complete(cmd.Context(), env); err != nil {
			return cli.AsUsage(err)
		}
		given, _ := r.Key()
		if err := enrolled(&r, cmd, strings.Clone(o.enroll), o.Name, o.StateDir); err != nil {
			return err
		}
		s, err := r.Open(cmd)
		if err != nil {
			return err
		}
		defer s.Client.CloseIdle()
		if o.image.Image == "" && len(o.Owners) == 0 {
			o.KeyExposed = exposedKey(&r, o.StateDir, strings.Clone(given))
		}
		hidden := hide(&r, o.enroll)
		if !strings.Contains(o.log, ",") && cli.Terminal(s.Err) && !s.JSON {
			o.log += ",console"
		}
		log, err := cli.NewLogger(s.Err, o.log)
		if err != nil {
			return cli.Usage("--log: %w", err)
		}
		if hidden != nil {
			log.Warn().Err(hidden).Msg("builds' commands may be able to read this worker's keys")
		}
		if o.image.Image == "" && len(o.Owners) == 0 && os.Geteuid() == 0 {
			log.Warn().Msg("builds run as root: they can read this worker's API key and everything else on this machine; use --user or --image")
		}
		if o.KeyExposed != "" {
			log.Warn().Str("file", o.KeyExposed).Msg(api.KeyExposed + "; " + runner.MendKey)
		}
		if len(o.Owners) > 0 && runtime.GOOS != "linux" {
			log.Warn().Msg("builds can use setuid programs such as sudo: preventing that needs Linux")
		}
		o.otlp = cmp.Or(o.otlp, env.Get(otlp.Variable))
		if err := otlp.Check(o.otlp); err != nil {
			return cli.Usage("--otlp: %w", err)
		}
		traces, err := otlp.Open(cmd.Context(), o.otlp, "takt-worker", metrics.New(), log)
		if err != nil {
			return err
		}
		defer traces.Close(cmd.Context())
		w, err := runner.New(s.Client, log, o.Config)
		if err != nil {
			return cli.AsUsage(err)
		}
		ctx, stop := onSignals(cmd.Context(), w)
		defer stop()
		if err = w.Run(ctx); errors.Is(err, runner.ErrUnfit) {
			err = cli.UnfitError{Err: err}
		}
		return err
	}
	return cmd
}

func (o *workerOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.exec, "exec", "", "command to run for each build, given to sh -c")
	f.StringVar(&o.image.Image, "image", "", "container image to run each build in, or from-job for the one that the controller names")
	f.StringSliceVar(&o.image.Allow, "allow-image", nil, "images that --image from-job may use, such as ghcr.io/acme/*; may be repeated")
	o.image.CacheLimit = 50 << 30
	sizeFlag(f, &o.image.CacheLimit, "image-cache", "maximum size of the images pulled for builds")
	f.StringVar(&o.image.Engine, "engine", "", "container engine (default: docker or podman, whichever is found first)")
	f.StringVar(&o.image.Network, "network", "", "the container's network: none, or the name of one that you made for builds (default: the engine's)")
	f.StringSliceVar(&o.image.Caps, "image-cap", runner.UsualCaps(), "the container's capabilities; '' for none")
	f.StringSliceVar(&o.users, "user", nil, "user of the command. With --image, any (default: the image's). With --exec, if takt runs as root, one user for each concurrent build, such as build1,build2, which nothing else uses (default: takt's own)")
	f.StringArrayVar(&o.env, "env", nil, "NAME or NAME=value: another variable for the command; may be repeated")
	f.StringSliceVarP(&o.platforms, "platform", "p", nil, "platform to build for, such as ios; may be repeated (default ios and android)")
	f.StringArrayVarP(&o.labels, "label", "l", nil, "NAME=value, such as xcode=16.2, which builds can require or prefer; may be repeated")
	f.StringVar(&o.Name, "name", "", "name shown to people (default: the host's)")
	f.StringVar(&o.StateDir, "state-dir", "", "id, token and builds of this worker (default: workers/NAME in the state directory)")
	f.StringVar(&o.enroll, "enroll", "", "token of takt keys enroll, with which this worker gets a key of its own; the key is kept in --state-dir")
	f.StringVar(&o.IDFile, "id-file", "", "file that holds the worker's id (default: worker-id in --state-dir)")
	f.IntVarP(&o.Concurrency, "concurrency", "c", 1, "number of builds at once")
	cli.DurationFlag(f, &o.Timeout, "timeout", time.Hour, "time limit of a build's command, unless the build brings one")
	cli.DurationFlag(f, &o.MaxTimeout, "max-timeout", 0, "longest time limit that a build may bring (default 4h, or --timeout if that is longer)")
	f.StringSliceVar(&o.AcceptEnv, "accept-env", []string{"BUILD_*", "APP_*", "EXPO_PUBLIC_*", "VERSION*"}, "parameters of builds that become variables of the command; '' for none")
	f.BoolVar(&o.AcceptSecrets, "accept-secrets", false, "take builds with secrets (default: with --image or --user)")
	f.Float64Var(&o.Resources.CPUs, "cpus", 0, "CPU limit of a build, in cores (default: none)")
	sizeFlag(f, &o.Resources.Memory, "memory", "memory limit of a build, such as 4GiB (default: none)")
	sizeFlag(f, &o.Resources.Disk, "disk", "disk limit of a build, such as 20GiB (default: none)")
	f.BoolVar(&o.Keep, "keep", false, "keep the builds' directories")
	cli.DurationFlag(f, &o.PollWait, "poll-wait", 30*time.Second, "how long a poll may stay open, 1s to 60s")
	cli.DurationFlag(f, &o.Heartbeat, "heartbeat", 15*time.Second, "time between two heartbeats of a build")
	cli.DurationFlag(f, &o.KillGrace, "kill-grace", 10*time.Second, "time between SIGTERM and SIGKILL")
	cli.DurationFlag(f, &o.Patience, "patience", 6*time.Hour, "how long to try to reach an absent controller with a result")
	o.Limits.Bytes = 8 << 30
	sizeFlag(f, &o.Limits.Bytes, "unpack-limit", "maximum unpacked size of an archive: contents, names, and 4 kB for each file, link and directory")
	f.StringVar(&o.log, "log", "info", "level and format: debug|info|warn|error[,json|console] (default format: console on a terminal, else json)")
	f.StringVar(&o.otlp, "otlp", "", "collector to send traces to (OTLP over HTTP), such as http://127.0.0.1:4318 (OTEL_EXPORTER_OTLP_ENDPOINT)")
}

// sizeFlag adds a flag that takes a number of bytes, such as 500MB or 4GiB; 0 is no limit.
func sizeFlag(f *pflag.FlagSet, to *int64, name, usage string) {
	cli.TextFlag(f, to, name, "size", usage, func(n int64) string {
		if n == 0 {
			return ""
		}
		return strings.ReplaceAll(humanize.IBytes(uint64(n)), " ", "")
	}, func(text string) (int64, error) {
		n, err := humanize.ParseBytes(text)
		if err != nil || n > math.MaxInt64 {
			return 0, errors.New("must be bytes, or with a unit, such as 4GiB or 500MB")
		}
		return int64(n), nil
	})
}

// complete fills in what the flags leave open, or returns an error for wrong flags.
func (o *workerOptions) complete(ctx context.Context, env cli.Environment) (err error) {
	o.Version = cli.Version()
	for _, p := range o.platforms {
		o.Platforms = append(o.Platforms, store.Platform(p))
	}
	if o.Labels, err = cli.ReadLabels(o.labels); err != nil {
		return err
	}
	for name := range o.Labels {
		if store.Reserved(name) {
			return fmt.Errorf("--label %s: the name is reserved", name)
		}
	}
	if o.Name == "" {
		if o.Name, err = os.Hostname(); err != nil {
			return fmt.Errorf("--name: %w", err)
		}
	}
	if o.StateDir == "" {
		plain := regexp.MustCompile(`[^A-Za-z0-9_-]+`).ReplaceAllString(o.Name, "-")
		o.StateDir = filepath.Join(cli.StateDir(env), "workers", plain)
	}
	extra, err := variables(o.env, env)
	for _, variable := range extra {
		name, value, _ := strings.Cut(variable, "=")
		o.OwnEnv = append(o.OwnEnv, name)
		if o.image.Image != "" && runner.EngineReads(name) && strings.ContainsAny(value, "\r\n") {
			err = fmt.Errorf("--env %s: the container engine reads it, so it can't have several lines", name)
		}
	}
	switch {
	case err != nil:
		return err
	case o.image.Image != "":
		image := o.image
		if len(o.users) > 1 {
			return fmt.Errorf("--user: a container has one user, got %q", o.users)
		}
		image.User = strings.Join(o.users, "")
		if image.Image == runner.FromJob && len(image.Allow) == 0 {
			return errors.New("--image from-job needs --allow-image")
		}
		for _, pattern := range image.Allow {
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("--allow-image %q: %w", pattern, err)
			}
		}
		image.Script, image.Env, image.CacheFile = o.exec, extra, filepath.Join(o.StateDir, "images")
		image.HostEnv, err = variables([]string{
			"PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "CONTAINER_HOST",
			"CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE",
		}, env)
		if err != nil {
			return err
		}
		if image.Engine == "" {
			if image.Engine, err = runner.FindEngine(ctx, image.HostEnv); err != nil {
				return err
			}
		}
		o.Command = &image
	case o.exec != "":
		base := []string{"PATH", "SHELL", "LANG", "LC_ALL", "TZ"}
		if len(o.users) == 0 {
			base = append(base, "HOME", "USER", "LOGNAME")
		}
		base, _ = variables(base, env)
		for _, name := range o.users {
			owner, err := runner.FindOwner(name)
			if err != nil {
				return fmt.Errorf("--user: %w", err)
			}
			o.Owners = append(o.Owners, owner)
		}
		o.Command = &runner.Exec{Script: o.exec, Env: append(base, extra...)}
	default:
		err = cli.Usage("--exec or --image is needed")
	}
	return err
}

// hide removes the keys from the environment and calls [runner.Hide], so that the
// commands of builds can't read them.
func hide(r *cli.Remote, more ...string) error {
	secrets := append(slices.Clip(more), r.APIKey)
	for _, name := range []string{"TAKT_API_KEY", "CONTROLLER_API_KEY", "TAKT_ADMIN_KEY", "TAKT_ENCRYPTION_KEY", "ENCRYPTION_KEY"} {
		secrets = append(secrets, os.Getenv(name))
		_ = os.Unsetenv(name) // fails only for an invalid name
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		if secret, set := os.LookupEnv(name); set {
			secrets = append(secrets, secret)
			_ = os.Setenv(name, secret) // a copy that Hide does not wipe, for the SDK
		}
	}
	return runner.Hide(secrets...)
}

// variables looks up the values of names that have none and leaves out those that are not
// set. It never passes on takt's keys.
func variables(names []string, env cli.Environment) ([]string, error) {
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

// onSignals has w send a diagnostic report at each SIGUSR1, drains it at the first signal that
// asks the process to end, and ends the returned context at the second. A third ends the process.
func onSignals(ctx context.Context, w *runner.Worker) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1)
	go func() {
		defer signal.Stop(signals)
		for draining := false; ; {
			select {
			case s := <-signals:
				switch {
				case s == syscall.SIGUSR1:
					w.Report()
				case draining:
					cancel(fmt.Errorf("second signal: %s", s))
					return
				default:
					draining = true
					w.Drain()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
