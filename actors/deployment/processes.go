package deployment

import (
	"context"
	"sync"
	"sync/atomic"

	"takt/actors/otp"
	"takt/store"
)

// processes are the processes of one run of a deployment. They are kept by the
// deployment's supervisor, so that the state process finds the others after its own
// restart.
type processes struct {
	claim  store.DeploymentClaim
	worker atomic.Pointer[otp.Proc] // nil before it begins
	repos  sync.Map                 // *otp.Proc of each RepoWorker → nil
}

// stop stops all RepoWorkers and waits until they or ctx have ended.
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
