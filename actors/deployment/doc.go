// Package deployment copies every repository of one organisation into another:
// one supervised worker each, so that whatever goes wrong with one of them costs
// that repository and nothing else.
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
// skipped. Its RepoWorker writes each step before it goes on to the next, so a
// deployment that was ended from above goes on at the recorded steps, here or at
// another controller.
//
// # State
//
// PostgreSQL has all of it. The state process is a view of the rows, made anew
// whenever one has changed; the worker has the names of what is left. Both may be
// lost at any moment. The forge credential is sealed in the row until the
// deployment ends, and in the worker's memory while it runs.
//
// # Failure
//
// A RepoWorker that panics, hangs or is killed fails its repository: the worker
// monitors it and writes what it could not write itself. A worker that crashes
// ends its deployment: its RepoWorkers are stopped, git included, the rest is
// marked as failed, and the deployment is done. A state process that crashes is
// restarted and loses nothing. What is ended from above (a restart of the
// subsystem, a shutdown, kill -9) marks nothing and is resumed. The database
// being away is an outage: writes wait for it. Those of a run that was taken over
// are fenced by the run's number.
//
// # Concurrency
//
// [Deployments] may be used from any goroutine. One controller works on a
// deployment at a time, by a lease that it renews.
package deployment
