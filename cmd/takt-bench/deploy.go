package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/http/githubtest"
	"takt/store"
)

const (
	deployRepos  = 60
	deployWidth  = 8
	plannedRepos = 5000
	deployToken  = "token-of-the-bench"
	sourceOrg    = "from"
)

// deployPeer is what one would type instead of takt. The credential is in git's
// environment, as takt has it; the targets are made before.
const deployPeer = `xargs -P %d -I NAME sh -c 'git clone -q --mirror "$FORGE/from/NAME.git" "NAME.git" && ` +
	`git -C "NAME.git" push -q --mirror "$FORGE/$TO/NAME.git" && rm -rf "NAME.git"'`

// forgeStage is a stand-in for GitHub, served by this process.
type forgeStage struct {
	*githubtest.Server
	url string
}

// forge serves an organisation of n repositories until stop. Each is a copy of a
// real one with a few commits, branches and tags, and has two of its own.
func (r *run) forge(ctx context.Context, n int, content bool) (*forgeStage, func(), error) {
	dir, err := os.MkdirTemp(r.Dir, "forge-")
	if err != nil {
		return nil, nil, fmt.Errorf("making a forge: %w", err)
	}
	s, err := githubtest.New(githubtest.Config{Dir: dir, Tokens: []string{deployToken}})
	if err != nil {
		return nil, nil, err
	}
	template := ""
	if content {
		if template, err = githubtest.Template(dir); err != nil {
			return nil, nil, err
		}
	}
	s.AddOrg(sourceOrg)
	for i := range n {
		repo := githubtest.Repo{Org: sourceOrg, Name: fmt.Sprintf("repo-%04d", i), Description: "one of many repositories"}
		if _, err := s.Add(repo, template); err != nil {
			return nil, nil, err
		}
	}
	address, stop, err := process.Serve(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	return &forgeStage{s, "http://" + address}, stop, nil
}

// deployments takes F1: a deployment against a shell loop over the same
// repositories.
func (r *run) deployments(ctx context.Context) error {
	f, stop, err := r.forge(ctx, deployRepos, true)
	if err != nil {
		return err
	}
	defer stop()
	c, err := r.start(ctx, "deploy", "TAKT_GITHUB_URL="+f.url, "TAKT_DEPLOY_PER_HOUR=1000000")
	if err != nil {
		return err
	}
	p, err := r.turns(ctx, fmt.Sprintf("F1: %d repositories by a shell loop, then by takt", deployRepos), func(ctx context.Context, i int) (sample, error) {
		took, err := r.shellLoop(ctx, f, fmt.Sprintf("loop%d", i))
		return work(deployRepos, took), err
	}, func(ctx context.Context, i int) (sample, error) {
		took, err := deployOnce(ctx, f, c, fmt.Sprintf("takt%d", i))
		return work(deployRepos, took), err
	})
	if err != nil {
		return err
	}
	r.add(figure{
		name: "F1", what: fmt.Sprintf("%d repositories deployed, %d at once, against xargs -P of git clone and push", deployRepos, deployWidth),
		measured: fmt.Sprintf("%.2f s, loop %.2f s", deployRepos/p.own.rate(), deployRepos/p.peer.rate()),
	}.atMost(1/p.ratio(), 1.15))
	return nil
}

// shellLoop copies all by the peer's command into an organisation of its own.
func (r *run) shellLoop(ctx context.Context, f *forgeStage, org string) (time.Duration, error) {
	f.AddOrg(org)
	for _, name := range f.Names(sourceOrg) {
		if _, err := f.Add(githubtest.Repo{Org: org, Name: name}, ""); err != nil {
			return 0, err
		}
	}
	dir, err := os.MkdirTemp(r.Dir, "loop-")
	if err != nil {
		return 0, fmt.Errorf("making a directory: %w", err)
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf(deployPeer, deployWidth))
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(strings.Join(f.Names(sourceOrg), "\n")+"\n")
	cmd.Env = append(os.Environ(), "FORGE="+f.url, "TO="+org, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http."+f.url+"/.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: Bearer "+deployToken)
	begin := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("the shell loop: %w: %s", err, out)
	}
	return time.Since(begin), f.same(org)
}

// deployOnce copies all by takt into an organisation of its own.
func deployOnce(ctx context.Context, f *forgeStage, c *controller, org string) (time.Duration, error) {
	f.AddOrg(org)
	start := time.Now()
	d, err := c.Client.Deploy(ctx, api.DeploymentRequest{DeploymentRequest: store.DeploymentRequest{SourceOrg: sourceOrg, TargetOrg: org, Concurrency: deployWidth}, Token: deployToken})
	if err != nil {
		return 0, err
	}
	err = c.Await(ctx, "the deployment to end", func() string { return fmt.Sprintf("%+v", d.Counts) }, func(ctx context.Context) (bool, error) {
		now, err := c.Client.Deployment(ctx, d.ID, false)
		if client.Temporary(err) {
			return false, nil // it is asked again
		}
		d = now
		return d.Ended(), err
	})
	took := time.Since(start)
	if err == nil && d.Counts.Done != d.Counts.Total {
		err = fmt.Errorf("%d of %d repositories were copied", d.Counts.Done, d.Counts.Total)
	}
	if err != nil {
		return took, err
	}
	if err := f.same(org); err != nil {
		return took, fmt.Errorf("%w: copied as it seems, but %w", errBroken, err)
	}
	return took, nil
}

// same checks that an organisation has all branches and tags of the source.
func (f *forgeStage) same(org string) error {
	for _, name := range f.Names(sourceOrg) {
		same, refs, err := f.Compare(sourceOrg, org, name)
		if err != nil {
			return err
		}
		if refs == 0 || !same {
			return fmt.Errorf("%s/%s differs from its source", org, name)
		}
	}
	return nil
}

// plannedMemory takes what a deployment of thousands adds to a controller.
func (r *run) plannedMemory(ctx context.Context) error {
	f, stop, err := r.forge(ctx, plannedRepos, false)
	if err != nil {
		return err
	}
	defer stop()
	f.AddOrg("to")
	// Nothing is ever pushed: git waits for the forge.
	f.Intercept(func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, ".git/") {
			<-req.Context().Done()
			return true
		}
		return false
	})
	c, err := r.start(ctx, "planned", "TAKT_GITHUB_URL="+f.url)
	if err != nil {
		return err
	}
	growth, err := c.growth()
	if err != nil {
		return err
	}
	r.say("F1: memory of %d planned repositories", plannedRepos)
	d, err := c.Client.Deploy(ctx, api.DeploymentRequest{DeploymentRequest: store.DeploymentRequest{SourceOrg: sourceOrg, TargetOrg: "to", Concurrency: deployWidth}, Token: deployToken})
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; err == nil && i < 50; { // followed for a while, with all its repositories
		select {
		case <-tick.C:
			if d, err = c.Client.Deployment(ctx, d.ID, true); len(d.Repos) == plannedRepos {
				i++
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	grown, gerr := growth()
	if err = errors.Join(err, gerr); err != nil {
		return err
	}
	if _, err := client.Call(ctx, c.Client, api.CancelDeployment, api.DeploymentOrder{ID: api.DeploymentID(d.ID)}); err != nil {
		return err
	}
	r.add(memory("F1", fmt.Sprintf("%d repositories planned and followed: growth of resident memory", plannedRepos), grown, 100*mib))
	return os.RemoveAll(filepath.Dir(f.Dir(sourceOrg, "x")))
}
