package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"takt/cmd/internal/must"
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

// forge serves an organisation of n repositories until the measurement ends. Each is a
// copy of a real one with a few commits, branches and tags, and has two of its own.
func (r *run) forge(ctx context.Context, n int, content bool) *forgeStage {
	dir := must.Get(os.MkdirTemp(r.Dir, "forge-"))
	s := must.Get(githubtest.New(githubtest.Config{Dir: dir, Tokens: []string{deployToken}}))
	template := ""
	if content {
		template = must.Get(githubtest.Template(dir))
	}
	s.AddOrg(sourceOrg)
	for i := range n {
		must.Get(s.Add(githubtest.Repo{Org: sourceOrg, Name: fmt.Sprintf("repo-%04d", i), Description: "one of many repositories"}, template))
	}
	address, stop, err := process.Serve(ctx, s)
	must.Do(err)
	r.atEnd(func() error {
		stop()
		return nil
	})
	return &forgeStage{s, "http://" + address}
}

// deployments takes F1: a deployment against a shell loop over the same
// repositories.
func (r *run) deployments(ctx context.Context) {
	f := r.forge(ctx, deployRepos, true)
	c := r.start(ctx, "deploy", "TAKT_GITHUB_URL="+f.url, "TAKT_DEPLOY_PER_HOUR=1000000")
	p := r.turns(fmt.Sprintf("F1: %d repositories by a shell loop, then by takt", deployRepos), func(i int) sample {
		return work(deployRepos, r.shellLoop(ctx, f, fmt.Sprintf("loop%d", i)))
	}, func(i int) sample {
		return work(deployRepos, deployOnce(ctx, f, c, fmt.Sprintf("takt%d", i)))
	})
	r.add(figure{
		name: "F1", what: fmt.Sprintf("%d repositories deployed, %d at once, against xargs -P of git clone and push", deployRepos, deployWidth),
		measured: fmt.Sprintf("%.2f s, loop %.2f s", deployRepos/p.own.rate(), deployRepos/p.peer.rate()),
	}.atMost(1/p.ratio(), 1.15))
}

// shellLoop copies all by the peer's command into an organisation of its own.
func (r *run) shellLoop(ctx context.Context, f *forgeStage, org string) time.Duration {
	f.AddOrg(org)
	for _, name := range f.Names(sourceOrg) {
		must.Get(f.Add(githubtest.Repo{Org: org, Name: name}, ""))
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf(deployPeer, deployWidth))
	cmd.Dir, cmd.Stdin = must.Get(os.MkdirTemp(r.Dir, "loop-")), strings.NewReader(strings.Join(f.Names(sourceOrg), "\n")+"\n")
	cmd.Env = append(os.Environ(), "FORGE="+f.url, "TO="+org, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http."+f.url+"/.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: Bearer "+deployToken)
	begin := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		must.Do(fmt.Errorf("the shell loop: %w: %s", err, out))
	}
	took := time.Since(begin)
	must.Do(f.same(org))
	return took
}

// deploy begins to copy all by takt.
func deploy(ctx context.Context, c *controller, org string) api.Deployment {
	return must.Get(c.Client.Deploy(ctx, api.DeploymentRequest{
		DeploymentRequest: store.DeploymentRequest{SourceOrg: sourceOrg, TargetOrg: org, Concurrency: deployWidth}, Token: deployToken,
	}))
}

// deployOnce copies all by takt into an organisation of its own.
func deployOnce(ctx context.Context, f *forgeStage, c *controller, org string) time.Duration {
	f.AddOrg(org)
	start := time.Now()
	d := deploy(ctx, c, org)
	must.Do(c.Await(ctx, "the deployment to end", func() string { return fmt.Sprintf("%+v", d.Counts) }, func(ctx context.Context) (bool, error) {
		now, err := c.Client.Deployment(ctx, d.ID, false)
		if client.Temporary(err) {
			return false, nil // it is asked again
		}
		d = now
		return d.Ended(), err
	}))
	took := time.Since(start)
	if d.Counts.Done != d.Counts.Total {
		must.Do(fmt.Errorf("%d of %d repositories were copied", d.Counts.Done, d.Counts.Total))
	}
	if err := f.same(org); err != nil {
		must.Do(fmt.Errorf("%w: copied as it seems, but %w", errBroken, err))
	}
	return took
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
func (r *run) plannedMemory(ctx context.Context) {
	f := r.forge(ctx, plannedRepos, false)
	f.AddOrg("to")
	// Nothing is ever pushed: git waits for the forge.
	f.Intercept(func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, ".git/") {
			<-req.Context().Done()
			return true
		}
		return false
	})
	c := r.start(ctx, "planned", "TAKT_GITHUB_URL="+f.url)
	grown := c.growth(ctx)
	r.say("F1: memory of %d planned repositories", plannedRepos)
	d := deploy(ctx, c, "to")
	for i := 0; i < 50; { // followed for a while, with all its repositories
		process.Pause(ctx, 100*time.Millisecond)
		if d = must.Get(c.Client.Deployment(ctx, d.ID, true)); len(d.Repos) == plannedRepos {
			i++
		}
	}
	r.add(memory("F1", fmt.Sprintf("%d repositories planned and followed: growth of resident memory", plannedRepos), grown(), 100*mib))
	must.Get(client.Call(ctx, c.Client, api.CancelDeployment, api.DeploymentOrder{ID: api.DeploymentID(d.ID)}))
	must.Do(os.RemoveAll(filepath.Dir(f.Dir(sourceOrg, "x"))))
}
