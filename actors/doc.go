// Package actors assembles takt's supervision tree from its subsystems, whose actors are in
// the packages below.
//
//	takt                       one_for_one, 3 in 5s
//	├── telemetry              metrics registry, log of supervision events
//	├── database               rest_for_one, 3 in 1m
//	│   ├── postgres           the embedded server; absent with an external database (34s)
//	│   ├── pool               pgx pool; runs migrations (10s)
//	│   └── listener           one LISTEN connection → pubsub
//	├── pubsub                 topics in the process
//	├── orchestration          one_for_one, 3 in 5s
//	│   ├── queue_manager      hands builds to polling workers (6s)
//	│   ├── heartbeat_monitor  recovers builds whose worker fell silent
//	│   ├── janitor            deletes old files, uploads copies missing in S3
//	│   ├── auditor            checks the database's invariants
//	│   └── keys               keeps the named keys up to date
//	├── heijunka               one_for_all, 3 in 5s
//	│   ├── pool_sup           one_for_one, 3 in 5s
//	│   │   ├── fleet          scales the pool and takes back its overflow
//	│   │   ├── submit         as fleet
//	│   │   ├── query          as fleet
//	│   │   ├── hook           as fleet
//	│   │   └── transfer       as fleet
//	│   ├── load_regulator     owns the limits of admission
//	│   ├── balancer           moves places to busier pools
//	│   └── burst_handler      adds places for a while when demand jumps
//	├── jobs                   River's client: jobs of throttle and notices (8s)
//	├── throttle               one_for_one, 3 in 5s
//	│   ├── config_cache       rates, for five minutes
//	│   ├── oauth_refresh_lock portals' tokens, refreshed by one at a time (40s)
//	│   ├── action_batcher     makes HubSpot's actions durable together (11s)
//	│   └── portal_queue_sup   dynamic: one per portal with actions
//	├── deployments            one_for_one, 3 in 5s
//	│   ├── deployment_sup     dynamic: one supervisor per deployment
//	│   ├── repo_sup           dynamic: one temporary worker per repository
//	│   └── resumer            starts supervisors for unattended deployments
//	├── request_sup            one_for_one, 3 in 5s
//	│   ├── fleet              dynamic: one temporary process per running request
//	│   ├── submit             dynamic: as fleet
//	│   ├── query              dynamic: as fleet
//	│   ├── hook               dynamic: as fleet
//	│   └── transfer           dynamic: as fleet
//	└── endpoint               the HTTP server; starts last, stops first
//
// Children start in this order, each after the previous one is up, and stop in reverse.
// After a strategy comes how many restarts are allowed in which time. The time in
// parentheses is how long a child may take to stop; the default is 5 s, and for a supervisor
// the time that its children need. A test keeps this drawing and tree.go equal.
//
// Services may be left out: without builds there is no queue_manager and no
// heartbeat_monitor, without throttle no throttle, without deployments no
// deployments.
//
// # State
//
// [Tree] holds the handles of the subsystems. Handles survive restarts. Each actor's
// comment says what its restart loses.
//
// # Failure
//
// A child that ends is restarted by its supervisor, alone or with those that depend on
// it. More than 3 restarts in 5 s at the root end the tree and the process, so that the
// init system starts it again. An outage of the database is no failure: pool waits for its
// end and is shown as suspended.
//
// # Concurrency
//
// All methods of Tree may be called from any goroutine.
package actors
