package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"takt/cmd/internal/process"
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
	workers = 3
	builds  = 10
	// command is what each worker runs in the unpacked source.
	command = `echo "testing" && go test -count=1 ./... && echo "building" && go build -trimpath -o "$TAKT_OUTPUT" .`

	buildLimit = 120 * time.Second
	stopLimit  = 30 * time.Second
)

// stage is the running demo.
type stage struct {
	config
	process.Site
	controller *process.Controller
	fleet      map[string]*process.Process // by worker name
	began      time.Time
}

// step is a part of a demo.
type step = func(context.Context) error

// play runs steps on a stage of their own, which is cleared away afterwards. It
// returns nil if everything was as promised.
func play(ctx context.Context, cfg config, steps func(*stage) []step) (err error) {
	site, err := process.Temporary("takt-demo", cfg.takt)
	if err != nil {
		return err
	}
	s := &stage{config: cfg, Site: site, fleet: map[string]*process.Process{}, began: time.Now()}
	defer func() {
		s.killAll(context.WithoutCancel(ctx))
		err = site.Clear(s.out, err)
	}()
	for _, step := range steps(s) {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// build plays the main job: a fleet builds ten programs, and one of it is killed.
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
		steps := []step{s.startController, s.startWorkers, s.buildTen, s.killOne, s.showTree}
		if s.stay {
			steps = append(steps, s.linger)
		}
		return append(steps, s.stopAll, s.sumUp)
	})
}

func (s *stage) sumUp(context.Context) error {
	s.say("done in %s: %d builds submitted, %d completed, 0 lost", time.Since(s.began).Round(100*time.Millisecond), builds+1, builds+1)
	return nil
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *stage) startController(ctx context.Context) (err error) {
	s.controller, err = s.Controller(ctx, "controller",
		// Short, so that a killed worker is noticed while the user watches.
		"TAKT_BUILD_TIMEOUT=4s", "TAKT_WORKER_TIMEOUT=5s", "TAKT_CHECK_INTERVAL=1s")
	if err != nil {
		return err
	}
	s.say("controller   %s, its own PostgreSQL, up after %s", s.controller.URL, time.Since(s.began).Round(10*time.Millisecond))
	s.say("dashboard    %s/login, the key is %s", s.controller.URL, s.controller.AdminKey)
	return nil
}

// linger waits until the demo is interrupted.
func (s *stage) linger(ctx context.Context) error {
	s.say("\nstaying      %s/login, the key is %s; Ctrl-C ends it", s.controller.URL, s.controller.AdminKey)
	<-ctx.Done()
	return nil
}

func (s *stage) startWorkers(context.Context) error {
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i+1)
		p, err := s.Worker(s.controller, name, command, nil, "--platform", "android", "--heartbeat", "1s")
		if err != nil {
			return err
		}
		s.fleet[name] = p
	}
	s.say("workers      %d, each runs: %s", workers, command)
	return nil
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
