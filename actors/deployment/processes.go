package deployment

import (
	"context"
	"sync"
	"sync/atomic"

	"takt/actors/otp"
	"takt/store"
)

// processes is who works on a deployment, in one run of it. It belongs to the
// deployment's supervisor, so that the state process finds the others after a
// restart of its own.
type processes struct {
	claim  store.DeploymentClaim
	worker atomic.Pointer[otp.Proc] // nil: it has not begun
	repos  sync.Map                 // *otp.Proc of each RepoWorker → nil
}

// stop ends all RepoWorkers, and waits for them or the end of ctx.
func (p *processes) stop(ctx context.Context) {
	var procs []*otp.Proc
	for key := range p.repos.Range {
		if proc, ok := key.(*otp.Proc); ok {
			procs = append(procs, proc)
			proc.Exit(otp.Shutdown("the deployment stops"))
		}
	}
	for _, proc := range procs {
		select {
		case <-proc.Done():
		case <-ctx.Done():
			proc.Kill()
		}
	}
}
