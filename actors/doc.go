// Package actors is the supervision tree of takt. It assembles the subsystems
// and does nothing else: an actor's work is in its own file.
//
//	takt                       one_for_one
//	├── telemetry              metrics registry, log of supervision events
//	├── repo                   rest_for_one
//	│   ├── postgres           the embedded server; absent with an external database
//	│   ├── pool               pgx pool; runs migrations
//	│   └── listener           one LISTEN connection → pubsub
//	├── pubsub                 topics in the process
//	├── orchestration          one_for_one
//	│   ├── queue_manager      hands builds to polling workers
//	│   ├── heartbeat_monitor  recovers builds whose worker fell silent
//	│   └── janitor            tidies storage, brings S3 the copies that it is owed
//	├── heijunka               one_for_all
//	│   ├── pool_sup           one_for_one
//	│   │   ├── fleet          rest_for_one
//	│   │   │   ├── workers    dynamic: one per slot
//	│   │   │   └── manager    scales the pool and replaces its workers
//	│   │   ├── submit         rest_for_one
//	│   │   │   ├── workers    dynamic: one per slot
//	│   │   │   └── manager    as fleet's
//	│   │   ├── query          rest_for_one
//	│   │   │   ├── workers    dynamic: one per slot
//	│   │   │   └── manager    as fleet's
//	│   │   ├── hook           rest_for_one
//	│   │   │   ├── workers    dynamic: one per slot
//	│   │   │   └── manager    as fleet's
//	│   │   └── transfer       rest_for_one
//	│   │       ├── workers    dynamic: one per slot
//	│   │       └── manager    as fleet's
//	│   ├── load_regulator     owns the limits of admission
//	│   ├── balancer           moves workers to where the work is
//	│   └── burst_handler      adds workers for a while when demand jumps
//	├── throttle               one_for_one
//	│   ├── config_cache       rates, for five minutes
//	│   ├── oauth_refresh_lock portals' tokens, refreshed by one at a time
//	│   ├── action_batcher     makes HubSpot's actions durable together
//	│   ├── job_batcher        inserts jobs
//	│   ├── jobs               River's client
//	│   └── portal_queue_sup   dynamic: one per portal with actions
//	├── deployments            one_for_one
//	│   ├── deployment_sup     dynamic: one supervisor per deployment
//	│   ├── repo_sup           dynamic: one temporary worker per repository
//	│   └── resumer            gives unattended deployments their supervisor
//	├── request_sup            dynamic: one temporary process per request
//	└── endpoint               the HTTP server; starts last, stops first
//
// Children start in this order, each when the one before it is up, and stop in
// reverse, each with a deadline of its own. A test keeps this drawing and
// tree.go equal.
//
// # State
//
// [Tree] holds the handles of the subsystems. Handles survive restarts; what a
// restart of each actor loses is written at the actor.
//
// # Failure
//
// A child that ends is restarted by its supervisor, alone or with those that
// depend on it. More than 3 restarts in 5 s at the root end the tree, and the
// process with it, so that the init system starts it anew. The database being
// away is weather, not a failure: pool waits for it, suspended.
//
// # Concurrency
//
// All methods of Tree may be called from any goroutine.
package actors
