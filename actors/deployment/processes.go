package deployment

import (
	"context"
	"sync"

	"takt/actors/otp"
	"takt/store"
)

// processes is who works on a deployment, in one run of it. It belongs to the
// deployment's supervisor, so that the state process finds the others after a
// restart of its own.
type processes struct {
	claim store.DeploymentClaim

	mu     sync.Mutex // guards what follows
	worker *otp.Proc
	repos  map[*otp.Proc]struct{}
}

func newProcesses(claim store.DeploymentClaim) *processes {
	return &processes{claim: claim, repos: map[*otp.Proc]struct{}{}}
}

// setWorker makes p the worker.
func (c *processes) setWorker(p *otp.Proc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.worker = p
}

// current returns the worker, nil if it has not begun.
func (c *processes) current() *otp.Proc {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.worker
}

func (c *processes) add(p *otp.Proc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.repos[p] = struct{}{}
}

func (c *processes) remove(p *otp.Proc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.repos, p)
}

// stop ends all RepoWorkers, and waits for them or the end of ctx.
func (c *processes) stop(ctx context.Context) {
	c.mu.Lock()
	procs := make([]*otp.Proc, 0, len(c.repos))
	for p := range c.repos {
		procs = append(procs, p)
	}
	c.mu.Unlock()
	for _, p := range procs {
		p.Exit(otp.Shutdown("the deployment stops"))
	}
	for _, p := range procs {
		select {
		case <-p.Done():
		case <-ctx.Done():
			p.Kill()
		}
	}
}
