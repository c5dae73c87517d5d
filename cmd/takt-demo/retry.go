package main

import (
	"context"
	"fmt"
	"strings"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

const (
	// busy is the exit code with which a build asks to be tried again.
	busy = 75
	// hidden is a value that nobody may read.
	hidden = "only-the-command-has-it"
)

// retryOne submits a build with a parameter and a secret whose first attempt ends with an exit code
// after which it is tried again. It shows why the build waits, and ends the wait as an operator can.
func (s *stage) retryOne(ctx context.Context) error {
	if _, err := client.Call(ctx, s.controller.Client, api.SetSecret, api.SetSecretIn{
		Name: "DEMO_TOKEN", Body: api.SecretContent{Value: []byte(hidden), Keys: []string{"release"}},
	}); err != nil {
		return fmt.Errorf("setting a secret: %w", err)
	}
	j, err := s.submit(ctx, "release", "order 12", "", func(sub *client.Submit) {
		sub.Inputs = store.Inputs{
			Params: store.Params{"APP_FLAVOUR": "beta"}, Secrets: map[string]string{"DEMO_TOKEN": store.SecretEnv}, RetryOn: []int{busy},
		}
	})
	if err != nil {
		return err
	}
	s.say("\nsubmitted    build %s with --env APP_FLAVOUR=beta --secret DEMO_TOKEN --retry-on %d", j.id, busy)
	if err := s.await(ctx, "a build to end with its exit code", []*job{j}, func(ctx context.Context) (bool, error) {
		err := s.refresh(ctx, j)
		return store.BuildState(j.last.State) == store.Pending && j.last.Ended != nil, err
	}); err != nil {
		return err
	}
	if err := s.ask(ctx, "why", j.id); err != nil {
		return err
	}
	if _, err := client.Call(ctx, s.controller.Client, api.RequeueBuild, api.RequeueBuildIn{ID: api.BuildID(j.id), Body: api.Order{Reason: "the demo"}}); err != nil {
		return fmt.Errorf("ending the wait of %s: %w", j.order, err)
	}
	s.say("\nrequeued     the build, because nobody wants to watch it wait (takt requeue %s)", j.id)
	if err := s.await(ctx, "the build to complete", []*job{j}, func(ctx context.Context) (bool, error) {
		err := s.refresh(ctx, j)
		return store.BuildState(j.last.State) == store.Completed, err
	}); err != nil {
		return err
	}
	_, printed, err := s.runArtifact(ctx, j)
	if err != nil {
		return err
	}
	log := s.buildLog(ctx, j)
	if strings.Contains(log, hidden) {
		return fmt.Errorf("the log of %s has its secret:\n%s", j.order, log)
	}
	s.say("completed    as attempt %d; it prints: %s. Its log has", j.last.Attempt, printed)
	for line := range strings.Lines(log) {
		if strings.Contains(line, "flavour") || strings.Contains(line, "tried again") {
			s.say("%s", strings.TrimSuffix(line, "\n"))
		}
	}
	return nil
}
