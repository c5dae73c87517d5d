// Package deployment copies all repositories of one GitHub organisation into another.
// Each repository has its own supervised worker, so that a failure affects only
// that repository.
//
//	deployments            one_for_one
//	├── deployment_sup     dynamic: one temporary supervisor per deployment
//	│   └── ID             one_for_one, a budget of its own
//	│       ├── state      permanent: what is recorded, and when it is done
//	│       └── worker     temporary: lists the repositories, starts a worker each
//	├── repo_sup           dynamic: one temporary RepoWorker per repository
//	└── resumer            gives deployments that nobody works on their supervisor
//
// A repository is planned → creating → pushing → verifying → done, failed or
// skipped. Its RepoWorker writes each step before the next one begins. So a
// deployment that a supervisor has stopped continues at the recorded steps, on
// this controller or another.
//
// # State
//
// PostgreSQL has all of it. The state process is a view of the rows, and reads
// them again after each change. The worker has the names of the unfinished
// repositories. Both may be lost at any moment. The forge credential is sealed in
// the row until the deployment ends, and in the worker's memory while it runs.
//
// # Failure
//
// A RepoWorker that panics, hangs or is killed fails its repository: the worker
// monitors it and writes the failure. A worker that crashes ends its deployment:
// its RepoWorkers and their git processes are stopped, the unfinished
// repositories are marked as failed, and the deployment is done. A state process
// that crashes is restarted and loses nothing. A restart of the subsystem, a
// shutdown or kill -9 marks nothing, and the deployment is resumed. A database
// that is away is an outage: writes wait for it. Writes of a run that was taken
// over fail, because they carry the old run's number.
//
// # Concurrency
//
// [Deployments] is safe for concurrent use. Only one controller at a time works on
// a deployment, because it holds a lease that it renews.
package deployment
