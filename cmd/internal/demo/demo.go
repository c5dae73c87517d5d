// Package demo runs takt's main job before the user's eyes, with nothing
// pretended: a controller on its own PostgreSQL, a fleet of worker processes
// that compile and test a real program, artifacts that are downloaded and run,
// and a worker that is killed in the middle of a build.
//
// # State
//
// Everything lives in one temporary directory, removed when the demo passes.
//
// # Failure
//
// The first thing that is not as promised ends the demo with an error that says
// what was expected; the logs of all processes are kept then.
//
// # Concurrency
//
// Run is called once. It owns the processes that it starts and ends them all,
// also when it fails or its context is cancelled.
package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"takt/cmd/internal/process"
	"takt/http/client"
)

// Config says what to run.
type Config struct {
	// Sample is the directory of the program that is built.
	Sample string
	// Out gets the story, a line at a time.
	Out io.Writer
	// Err gets the progress bar of Deploy, if it is a terminal.
	Err io.Writer
	// Environ is the environment that the processes inherit; TAKT_* settings in
	// it are replaced by the demo's own.
	Environ []string
}

const (
	workers = 3
	builds  = 10
	// command is what each worker runs in the unpacked source.
	command = `echo "testing" && go test -count=1 ./... && echo "building" && go build -trimpath -o "$TAKT_OUTPUT" .`

	startLimit = 60 * time.Second
	buildLimit = 120 * time.Second
	stopLimit  = 30 * time.Second
)

// stage is the running demo.
type stage struct {
	cfg        Config
	dir        string
	controller *process.Controller
	fleet      map[string]*process.Process // by worker name
	client     *client.Client
	began      time.Time
}

// Run plays the demo and returns nil if everything was as promised.
func Run(ctx context.Context, cfg Config) (err error) {
	if _, err := os.Stat(filepath.Join(cfg.Sample, "go.mod")); err != nil {
		return fmt.Errorf("the sample program is not in %s: run the demo from takt's source directory or give --sample", cfg.Sample)
	}
	sample, err := filepath.Abs(cfg.Sample)
	if err != nil {
		return fmt.Errorf("finding the sample program: %w", err)
	}
	cfg.Sample = sample
	dir, err := os.MkdirTemp("", "takt-demo-")
	if err != nil {
		return fmt.Errorf("making a directory for the demo: %w", err)
	}
	s := &stage{cfg: cfg, dir: dir, fleet: map[string]*process.Process{}, began: time.Now()}
	defer func() {
		s.killAll(context.WithoutCancel(ctx))
		if err != nil {
			s.say("the logs of all processes are in %s", dir)
			return
		}
		err = os.RemoveAll(dir)
	}()
	for _, step := range []func(context.Context) error{s.startController, s.startWorkers, s.buildTen, s.killOne, s.showTree, s.stopAll} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	s.say("done in %s: %d builds submitted, %d completed, 0 lost", time.Since(s.began).Round(100*time.Millisecond), builds+1, builds+1)
	return nil
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(s.cfg.Out, format+"\n", args...) }

func (s *stage) startController(ctx context.Context) (err error) {
	s.controller, err = process.StartController(ctx, s.dir, "controller", process.Environ(s.cfg.Environ,
		// Short, so that a killed worker is noticed while the user watches.
		"TAKT_BUILD_TIMEOUT=4s", "TAKT_WORKER_TIMEOUT=5s", "TAKT_CHECK_INTERVAL=1s"), startLimit)
	if err != nil {
		return err
	}
	s.client = s.controller.Client
	s.say("controller   %s, its own PostgreSQL, up after %s", s.controller.URL, time.Since(s.began).Round(10*time.Millisecond))
	return nil
}

func (s *stage) startWorkers(context.Context) error {
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i+1)
		p, err := process.Launch(s.dir, name, process.Environ(s.cfg.Environ, "TAKT_URL="+s.controller.URL, "TAKT_API_KEY="+s.controller.APIKey),
			"worker", "--name", name, "--state-dir", filepath.Join(s.dir, name),
			"--platform", "android", "--heartbeat", "1s", "--exec", command)
		if err != nil {
			return err
		}
		s.fleet[name] = p
	}
	s.say("workers      %d, each runs: %s", workers, command)
	return nil
}

// await polls cond until it holds; it ends early on cond's error, on ctx, and
// when the controller has died.
func (s *stage) await(ctx context.Context, limit time.Duration, what string, cond func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("waited %s for %s", limit, what))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		if s.controller != nil && !s.controller.Alive() {
			return fmt.Errorf("the controller ended while waiting for %s%s", what, s.controller.Tail())
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
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
