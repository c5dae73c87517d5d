package deployment

import (
	"context"
	"time"

	"takt/actors/otp"
	"takt/store"
)

const (
	// repoStop is how long a RepoWorker may take to stop. Its git processes are killed at
	// once.
	repoStop = 5 * time.Second
	// workerStop is how long a DeploymentWorker may take to stop its RepoWorkers.
	workerStop = 2 * repoStop
	// maxRepoWorkers is the maximum number of RepoWorkers of all deployments together.
	maxRepoWorkers = 256
)

// DeploymentSup supervises one temporary supervisor per deployment.
func (d *Deployments) DeploymentSup() otp.ChildSpec {
	return dynamic("deployment_sup", 0, otp.ChildSpec{
		ID: "deployment", Restart: otp.Temporary, Shutdown: 2 * workerStop,
		Key:            func(args any) string { return args.(store.DeploymentClaim).ID },
		SupervisorArgs: func(args any) otp.SupSpec { return d.deployment(&processes{claim: args.(store.DeploymentClaim)}) },
	})
}

// RepoSup supervises one temporary RepoWorker per repository.
func (d *Deployments) RepoSup() otp.ChildSpec {
	return dynamic("repo_sup", maxRepoWorkers, otp.ChildSpec{
		ID: "repo", Restart: otp.Temporary, Shutdown: repoStop,
		Key:      func(args any) string { return args.(*repoWorker).key() },
		TaskArgs: func(ctx context.Context, args any) error { return args.(*repoWorker).run(ctx) },
	})
}

// Resumer starts supervisors for deployments that have none.
func (d *Deployments) Resumer() otp.ChildSpec {
	return otp.ChildSpec{ID: "resumer", Server: func() otp.Server { return &resumer{d: d} }}
}

// dynamic supervises at most limit instances of template, or any number if limit is 0.
func dynamic(id string, limit int, template otp.ChildSpec) otp.ChildSpec {
	return otp.ChildSpec{ID: id, Supervisor: func() otp.SupSpec {
		return otp.SupSpec{Strategy: otp.Dynamic, MaxChildren: limit, Children: []otp.ChildSpec{template}}
	}}
}

// deployment is the supervisor of one deployment. The state process outlives the worker,
// because it records the worker's end.
func (d *Deployments) deployment(processes *processes) otp.SupSpec {
	return otp.SupSpec{
		Strategy: otp.OneForOne, Intensity: 3, Period: 5 * time.Second,
		Children: []otp.ChildSpec{
			{ID: "state", Server: func() otp.Server { return &state{d: d, processes: processes} }},
			{ID: "worker", Restart: otp.Temporary, Shutdown: workerStop, Server: func() otp.Server { return &worker{d: d, processes: processes} }},
		},
	}
}
