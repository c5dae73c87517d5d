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

// Supervisor is the subsystem. The tree gives it its id, and Config.Name.
func (d *Deployments) Supervisor() otp.SupSpec {
	return otp.SupSpec{
		Strategy: otp.OneForOne, Intensity: 3, Period: 5 * time.Second,
		Children: []otp.ChildSpec{
			{ID: "deployment_sup", Supervisor: d.deployments},
			{ID: "repo_sup", Supervisor: d.repos},
			{ID: "resumer", Server: func() otp.Server { return &resumer{d: d} }},
		},
	}
}

// deployments supervises one temporary supervisor per deployment.
func (d *Deployments) deployments() otp.SupSpec {
	return otp.SupSpec{Strategy: otp.Dynamic, Intensity: 3, Period: 5 * time.Second, Children: []otp.ChildSpec{{
		ID: "deployment", Restart: otp.Temporary, Shutdown: 2 * workerStop,
		Key:            func(args any) string { return claimOf(args).ID },
		SupervisorArgs: func(args any) otp.SupSpec { return d.deployment(newCrew(claimOf(args))) },
	}}}
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
func (d *Deployments) deployment(crew *crew) otp.SupSpec {
	return otp.SupSpec{
		Strategy: otp.OneForOne, Intensity: 3, Period: 5 * time.Second,
		Children: []otp.ChildSpec{
			{ID: "state", Server: func() otp.Server { return &state{d: d, crew: crew} }},
			{ID: "worker", Restart: otp.Temporary, Shutdown: workerStop, Server: func() otp.Server { return &worker{d: d, crew: crew} }},
		},
	}
}

// repos supervises one temporary RepoWorker per repository.
func (d *Deployments) repos() otp.SupSpec {
	return otp.SupSpec{Strategy: otp.Dynamic, Intensity: 3, Period: 5 * time.Second, MaxChildren: maxRepoWorkers, Children: []otp.ChildSpec{{
		ID: "repo", Restart: otp.Temporary, Shutdown: repoStop,
		Key: func(args any) string {
			r := repoWorkerOf(args)
			return r.crew.claim.ID + ":" + r.name
		},
		TaskArgs: func(args any) otp.Task { return otp.Task{Run: repoWorkerOf(args).run} },
	}}}
}

func repoWorkerOf(args any) *repoWorker {
	r, ok := args.(*repoWorker)
	if !ok {
		panic("a RepoWorker is started with what it is to do")
	}
	return r
}
