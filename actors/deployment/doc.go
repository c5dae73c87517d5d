// Package deployment copies all repositories of one GitHub organisation into another.
// Each repository has its own supervised worker, so that a failure affects only
// that repository.
//
//	deployments            one_for_one
//	├── deployment_sup     dynamic: one temporary supervisor per deployment
//	│   └── ID             one_for_one, with restart limits of its own
//	│       ├── state      permanent: publishes changes and records the end
//	│       └── worker     temporary: lists the repositories, starts a RepoWorker for each
//	├── repo_sup           dynamic: one temporary RepoWorker per repository
//	└── resumer            starts supervisors for deployments that nobody works on
//
// A repository is planned → creating → pushing → verifying → done, failed or
// skipped. Its RepoWorker records each step before the next one begins. So a
// deployment that was interrupted continues at the recorded steps, on this controller
// or another.
//
// # State
//
// PostgreSQL has all of it. The worker has the names of the unfinished repositories,
// which may be lost at any moment. The forge credential is sealed in the row until the
// deployment ends, and in the worker's memory while that runs.
//
// # Failure
//
// If a RepoWorker panics, hangs or is killed, its repository fails: the worker monitors
// it and records the failure. If a worker crashes, its deployment ends: its RepoWorkers
// and their git processes are stopped, the unfinished repositories fail, and the
// deployment is done. A state process that crashes is restarted and loses nothing. After
// a restart of the subsystem, a shutdown or kill -9, the deployment is resumed. During an
// outage of the database, writes wait for its end. Writes of a run that was taken over
// fail, because they have the old run's number.
//
// # Concurrency
//
// [Deployments] is safe for concurrent use. Only one controller at a time works on
// a deployment, because it holds a lease that it renews.
package deployment
