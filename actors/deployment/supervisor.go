package deployment

import (
	"context"
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
