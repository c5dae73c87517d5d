package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// config says what to run.
type config struct {
	// takt is the program to show; empty: the one beside this program.
	takt string
	// sample is the directory of the program that is built.
	sample string
	// out gets the story, a line at a time.
	out io.Writer
	// err gets the progress bar of the deployment, if it is a terminal.
	err io.Writer
	// stay keeps all running until the demo is interrupted.
	stay bool
}

const (
	builds = 10
	// flood is how many of them nightly submits before release submits the rest.
	flood = 7
	// gpu is what the last build of the flood requires of a worker.
	gpu = "gpu"
	// command is what each worker runs in the unpacked source. The flavour beta has no luck at first.
	command = `echo "testing flavour ${APP_FLAVOUR:-none}, token ${DEMO_TOKEN:-none}" && { [ "$APP_FLAVOUR$TAKT_ATTEMPT" != beta1 ] || exit 75; } && go test -count=1 ./... && echo "building" && go build -trimpath -o "$TAKT_OUTPUT" .`

	// platform is what the sample program is built for, and run on.
	platform = store.Platform(runtime.GOOS)
	// noticed is how long a killed worker is silent until takt notices, while the user
	// watches; usually it is five minutes.
	noticed = 4 * time.Second
	// stopLimit is only for a process that hangs: takt ends by its own deadlines.
	stopLimit = 5 * time.Minute
)

// stage is the running demo.
type stage struct {
	config
	process.Site
	controller *process.Controller
	// submitters are clients with a key each.
	submitters map[string]*client.Client
	notices    *notices
	fleet      map[string]*process.Process // by worker name
	began      time.Time
	packed     string // what the source of a build has, and has not
}

// step is a part of a demo.
type step = func(context.Context) error

// play runs steps on a stage of their own, which is cleared away afterwards. It
// returns nil if everything was as promised.
func play(ctx context.Context, cfg config, steps func(*stage) []step) error {
	return process.In("takt-demo", cfg.takt, cfg.out, func(site process.Site) error {
		s := &stage{config: cfg, Site: site, fleet: map[string]*process.Process{}, began: time.Now()}
		defer func() {
			if s.notices != nil {
				s.notices.stop()
			}
			s.killAll(context.WithoutCancel(ctx))
		}()
		for _, step := range steps(s) {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// build plays the main job: a fleet builds ten programs, one of it is killed, and a build is tried again.
func build(ctx context.Context, cfg config) error {
	if _, err := os.Stat(filepath.Join(cfg.sample, "go.mod")); err != nil {
		return fmt.Errorf("the sample program is not in %s: run the demo from takt's source directory or give --sample", cfg.sample)
	}
	sample, err := filepath.Abs(cfg.sample)
	if err != nil {
		return fmt.Errorf("finding the sample program: %w", err)
	}
	cfg.sample = sample
	return play(ctx, cfg, func(s *stage) []step {
		steps := []step{s.startController, s.makeKeys, s.subscribe, s.buildTen, s.checkNotices, s.killOne, s.retryOne, s.showTree}
		if s.stay {
			steps = append(steps, s.linger)
		}
		return append(steps, s.stopAll, s.sumUp)
	})
}

func (s *stage) sumUp(context.Context) error {
	s.say("done in %s: %d builds submitted, %d completed, 0 lost", time.Since(s.began).Round(100*time.Millisecond), builds+2, builds+2)
	return nil
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *stage) startController(ctx context.Context) (err error) {
	s.controller, err = s.Controller(ctx, "controller", "TAKT_PLATFORMS=ios,android,"+string(platform), "TAKT_CHECK_INTERVAL=1s", "TAKT_NOTICE_ALLOW=127.0.0.1")
	if err != nil {
		return err
	}
	s.say("controller   %s, its own PostgreSQL, up after %s", s.controller.URL, time.Since(s.began).Round(10*time.Millisecond))
	s.say("dashboard    %s/login, the key is %s", s.controller.URL, s.controller.AdminKey)
	return nil
}

// await waits until cond holds. Progress is what becomes of jobs, and what workers do for them.
func (s *stage) await(ctx context.Context, what string, jobs []*job, cond func(context.Context) (bool, error)) error {
	return s.controller.Await(ctx, what, func() string {
		var b strings.Builder
		for _, j := range jobs {
			fmt.Fprintf(&b, "%s %s attempt %d, ", j.order, cli.Or(&j.last.State, "submitted"), j.last.Attempt)
		}
		for _, name := range slices.Sorted(maps.Keys(s.fleet)) {
			b.WriteString(s.fleet[name].Progress() + ", ")
		}
		return strings.TrimSuffix(b.String(), ", ")
	}, cond)
}

// linger waits until the demo is interrupted.
func (s *stage) linger(ctx context.Context) error {
	s.say("\nstaying      %s/login, the key is %s; Ctrl-C ends it", s.controller.URL, s.controller.AdminKey)
	<-ctx.Done()
	return nil
}

// makeKeys makes a key for each submitter.
func (s *stage) makeKeys(ctx context.Context) error {
	s.submitters = map[string]*client.Client{}
	for _, name := range []string{"nightly", "release"} {
		made, err := client.Call(ctx, s.controller.Client, api.CreateKey, api.CreateKeyIn{Name: name, Scopes: []store.Scope{store.ScopeSubmit, store.ScopeRead}})
		if err != nil {
			return fmt.Errorf("making the key of %s: %w", name, err)
		}
		if s.submitters[name], err = client.New(client.Config{BaseURL: s.controller.URL, APIKey: made.Key}); err != nil {
			return err
		}
	}
	s.say("submitters   nightly and release, each with a key of its own")
	return nil
}

// startWorkers starts a mixed fleet: two workers without labels, and one with a label.
func (s *stage) startWorkers(context.Context) error {
	for i, labels := range [][]string{nil, nil, {"--label", gpu + "=1"}} {
		if err := s.startWorker(fmt.Sprintf("worker-%d", i+1), labels...); err != nil {
			return err
		}
	}
	s.say("workers      %d, of which worker-3 has the label %s; each runs: %s", len(s.fleet), gpu, command)
	return nil
}

func (s *stage) startWorker(name string, labels ...string) error {
	p, err := s.Worker(s.controller, name, command, nil, append([]string{"--platform", string(platform), "--heartbeat", "1s", "--accept-secrets"}, labels...)...)
	if err == nil {
		s.fleet[name] = p
	}
	return err
}

func (s *stage) killAll(ctx context.Context) {
	for _, p := range s.fleet {
		if p.Alive() {
			p.Kill()
		}
	}
	if s.controller != nil && s.controller.Alive() {
		// Gently: its PostgreSQL is to end with it.
		if err := s.controller.Stop(ctx, stopLimit); err != nil {
			s.say("%v", err)
		}
	}
}

func (s *stage) stopAll(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx) // also after an interrupt, which ends a demo that stays
	for name, p := range s.fleet {
		if err := p.Stop(ctx, stopLimit); err != nil {
			return fmt.Errorf("draining %s: %w", name, err)
		}
	}
	if err := s.controller.Stop(ctx, stopLimit); err != nil {
		return fmt.Errorf("stopping the controller: %w", err)
	}
	s.say("\nstopped      workers drained, controller and PostgreSQL ended cleanly")
	return nil
}
