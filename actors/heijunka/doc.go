// Package heijunka levels the load in front of everything: so many requests at
// once and no more, each in a slot of the pool of its kind.
//
//	request ──▶ gate ──▶ route ──▶ pool ──▶ request actor ──▶ handler
//	            token     │         slot
//	            or 503    └ own pool, else the least loaded of its list
//
// LoadRegulator owns the gate's limits, watches how near the load comes to them
// and keeps what operators change. Each domain has a pool: a supervisor of its
// workers and a manager that scales, heals and replaces them. Balancer moves
// capacity to where the work is; BurstHandler adds some for a while when demand
// jumps.
//
//	heijunka               one_for_all
//	├── pool_sup           one_for_one
//	│   └── <pool>         rest_for_one
//	│       ├── workers    dynamic: lanes, temporary
//	│       └── manager
//	├── load_regulator
//	├── balancer
//	└── burst_handler
//
// # State
//
// [Heijunka], the handle, has what requests touch: the gate with its table of
// tokens, each pool's lanes and waiters, the routes, the surge under way. It
// outlives every actor. An actor that starts again takes all of this over and
// loses only what it measures itself: the baseline of bursts, rates, ping
// results. PostgreSQL has what operators changed.
//
// # Failure
//
// A token and a slot belong to a call of [Heijunka.Do], which gives both back
// however it ends; those of processes come back when the process ends. A worker
// that crashes costs the request that holds it, whose context is cancelled, and
// is replaced after a growing delay. A worker that is stopped in order (restart
// of its pool, or of everything here) costs nothing: the request keeps its lane,
// which counts until it ends and gets a new worker. While a pool has no workers
// at all, requests wait for [Config.RestartGap] and are then refused with
// store.Unavailable.
//
// # Concurrency
//
// The handle's methods may be called from any goroutine. The gate is lock-free:
// one counter decides, and is never above the limit. A pool's lanes and waiters
// are behind a mutex that is held for moments; no request waits for an actor's
// mailbox. Decisions are in types without clock or goroutines (gate, lanes,
// sizing, routes, balance, burst), which the actors are thin shells of.
package heijunka
