package deployment

import (
	"time"

	"takt/actors/otp"
	"takt/store"
)

const (
	// repoStop is what a RepoWorker gets to end, with its git processes, which
	// are killed at once.
	repoStop = 5 * time.Second
	// workerStop is what a DeploymentWorker gets to end its RepoWorkers.
	workerStop = 2 * repoStop
	// maxRepoWorkers bounds them over all deployments.
	maxRepoWorkers = 256
)

// DeploymentSup supervises one temporary supervisor per deployment.
func (d *Deployments) DeploymentSup() otp.ChildSpec {
	return dynamic("deployment_sup", 0, otp.ChildSpec{
		ID: "deployment", Restart: otp.Temporary, Shutdown: 2 * workerStop,
		Key:            func(args any) string { return claimOf(args).ID },
		SupervisorArgs: func(args any) otp.SupSpec { return d.deployment(&processes{claim: claimOf(args)}) },
	})
}

// RepoSup supervises one temporary RepoWorker per repository.
func (d *Deployments) RepoSup() otp.ChildSpec {
	return dynamic("repo_sup", maxRepoWorkers, otp.ChildSpec{
		ID: "repo", Restart: otp.Temporary, Shutdown: repoStop,
		Key: func(args any) string {
			r := repoWorkerOf(args)
			return r.processes.claim.ID + ":" + r.name
		},
		TaskArgs: func(args any) otp.Task { return otp.Task{Run: repoWorkerOf(args).run} },
	})
}

// Resumer gives unattended deployments their supervisor.
func (d *Deployments) Resumer() otp.ChildSpec {
	return otp.ChildSpec{ID: "resumer", Server: func() otp.Server { return &resumer{d: d} }}
}

// dynamic supervises at most limit instances of template, any number if that is 0.
func dynamic(id string, limit int, template otp.ChildSpec) otp.ChildSpec {
	return otp.ChildSpec{ID: id, Supervisor: func() otp.SupSpec {
		return otp.SupSpec{Strategy: otp.Dynamic, MaxChildren: limit, Children: []otp.ChildSpec{template}}
	}}
}

func claimOf(args any) store.DeploymentClaim {
	claim, ok := args.(store.DeploymentClaim)
	if !ok {
		panic("a deployment is started with its claim")
	}
	return claim
}

// deployment is the supervisor of one: the state outlives the worker, whose end
// it records.
func (d *Deployments) deployment(processes *processes) otp.SupSpec {
	return otp.SupSpec{
		Strategy: otp.OneForOne, Intensity: 3, Period: 5 * time.Second,
		Children: []otp.ChildSpec{
			{ID: "state", Server: func() otp.Server { return &state{d: d, processes: processes} }},
			{ID: "worker", Restart: otp.Temporary, Shutdown: workerStop, Server: func() otp.Server { return &worker{d: d, processes: processes} }},
		},
	}
}

func repoWorkerOf(args any) *repoWorker {
	r, ok := args.(*repoWorker)
	if !ok {
		panic("a RepoWorker is started with what it is to do")
	}
	return r
}
