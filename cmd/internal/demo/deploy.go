package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"time"

	"takt/cmd/internal/process"
	"takt/http/githubtest"
)

// Deploy copies an organisation of fifty real repositories into another, both on
// a stand-in for GitHub, by the command that a user would type. It returns nil if
// every branch and tag is where it belongs.
func Deploy(ctx context.Context, cfg Config) (err error) {
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
	forge, err := githubtest.New(githubtest.Config{Dir: filepath.Join(dir, "forge"), Tokens: []string{token}})
	if err != nil {
		return err
	}
	if err := organisation(forge); err != nil {
		return fmt.Errorf("making the organisation: %w", err)
	}
	url, stop, err := listen(ctx, forge)
	if err != nil {
		return err
	}
	defer stop()
	s.say("forge        %s, a stand-in for GitHub: %d real repositories in %s, after %s", url, repos, sourceOrg, time.Since(s.began).Round(10*time.Millisecond))
	if s.controller, err = process.StartController(ctx, s.dir, "controller", process.Environ(cfg.Environ, "TAKT_GITHUB_URL="+url), startLimit); err != nil {
		return err
	}
	s.say("controller   %s, its own PostgreSQL", s.controller.URL)
	return s.deploy(ctx, forge)
}

// listen serves the stand-in until stop.
func listen(ctx context.Context, forge http.Handler) (url string, stop func(), err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listening for the forge: %w", err)
	}
	server := &http.Server{Handler: forge, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(ln) }() // until stop
	return "http://" + ln.Addr().String() + "/", func() { _ = server.Close() }, nil
}

// deploy plans, copies and checks.
func (s *stage) deploy(ctx context.Context, forge *githubtest.Server) error {
	s.say("\n$ takt deploy --from %s --to %s --dry-run", sourceOrg, targetOrg)
	if code, err := s.command(ctx, "deploy", "--from", sourceOrg, "--to", targetOrg, "--dry-run"); err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("the dry run ended with exit code %d", code))
	}
	if n := len(forge.Names(targetOrg)); n != 1 {
		return fmt.Errorf("the dry run left %d repositories at the target, not the one that was there", n)
	}
	s.say("\n$ takt deploy --from %s --to %s --watch", sourceOrg, targetOrg)
	code, err := s.command(ctx, "deploy", "--from", sourceOrg, "--to", targetOrg, "--watch")
	if err != nil {
		return err
	}
	if code != 1 {
		return fmt.Errorf("one repository's name is taken, so the exit code should be 1, not %d", code)
	}
	refs, err := compare(forge)
	if err != nil {
		return err
	}
	s.say("\nchecked      %d repositories: all %d branches and tags are the same on both sides; %s of somebody else was left alone",
		repos-1, refs, clash)
	if err := s.controller.Stop(ctx, stopLimit); err != nil {
		return fmt.Errorf("stopping the controller: %w", err)
	}
	s.say("stopped      controller and PostgreSQL ended cleanly, after %s", time.Since(s.began).Round(100*time.Millisecond))
	return nil
}

// command runs takt as the user would, on the user's terminal.
func (s *stage) command(ctx context.Context, args ...string) (code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("finding the takt binary: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = process.Environ(s.cfg.Environ, "TAKT_URL="+s.controller.URL, "TAKT_API_KEY="+s.controller.APIKey, "TAKT_GITHUB_TOKEN="+token)
	cmd.Stdout, cmd.Stderr = s.cfg.Out, s.cfg.Err
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// compare looks at the forge's own files, whatever takt says.
func compare(forge *githubtest.Server) (refs int, err error) {
	for _, name := range forge.Names(sourceOrg) {
		want, err := githubtest.ReadRefs(forge.Dir(sourceOrg, name))
		if err != nil {
			return 0, err
		}
		got, err := githubtest.ReadRefs(forge.Dir(targetOrg, name))
		if err != nil {
			return 0, fmt.Errorf("%s was not copied: %w", name, err)
		}
		same := reflect.DeepEqual(want, got)
		if same == (name == clash) {
			return 0, fmt.Errorf("%s: the same on both sides: %t", name, same)
		}
		if name != clash {
			refs += len(got)
		}
	}
	return refs, nil
}
