package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"takt/cmd/internal/process"
	"takt/http/githubtest"
)

// deploy copies an organisation of fifty real repositories into another, both on
// a stand-in for GitHub, by the command that a user would type. Every branch and
// tag has to be where it belongs.
func deploy(ctx context.Context, cfg config) error {
	return play(ctx, cfg, func(s *stage) []step { return []step{s.deployFromForge} })
}

func (s *stage) deployFromForge(ctx context.Context) error {
	forge, err := githubtest.New(githubtest.Config{Dir: filepath.Join(s.Dir, "forge"), Tokens: []string{token}})
	if err != nil {
		return err
	}
	if err := organisation(forge); err != nil {
		return fmt.Errorf("making the organisation: %w", err)
	}
	address, stop, err := process.Serve(ctx, forge)
	if err != nil {
		return err
	}
	defer stop()
	url := "http://" + address + "/"
	s.say("forge        %s, a stand-in for GitHub: %d real repositories in %s, after %s", url, repos, sourceOrg, time.Since(s.began).Round(10*time.Millisecond))
	if s.controller, err = s.Controller(ctx, "controller", "TAKT_GITHUB_URL="+url); err != nil {
		return err
	}
	s.say("controller   %s, its own PostgreSQL", s.controller.URL)
	return s.copyAll(ctx, forge)
}

// copyAll plans, copies and checks.
func (s *stage) copyAll(ctx context.Context, forge *githubtest.Server) error {
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
	cmd := exec.CommandContext(ctx, s.Takt, args...)
	cmd.Env = s.Environment("TAKT_URL="+s.controller.URL, "TAKT_API_KEY="+s.controller.APIKey, "TAKT_GITHUB_TOKEN="+token)
	cmd.Stdout, cmd.Stderr = s.out, s.err
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// compare looks at the forge's own files, whatever takt says.
func compare(forge *githubtest.Server) (refs int, err error) {
	for _, name := range forge.Names(sourceOrg) {
		same, n, err := forge.Compare(sourceOrg, targetOrg, name)
		if err != nil {
			return 0, err
		}
		if same == (name == clash) {
			return 0, fmt.Errorf("%s: the same on both sides: %t", name, same)
		}
		if name != clash {
			refs += n
		}
	}
	return refs, nil
}
