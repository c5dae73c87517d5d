// Package heijunka levels the load in front of everything: so many requests at
// once and no more, each in a place of the pool of its kind.
//
//	request ──▶ gate ──▶ route ──▶ pool ──▶ process ──▶ handler
//	            token     │         place
//	            or 503    └ own pool, else the least loaded of its list
//
// LoadRegulator owns the gate's limits, watches how near the load comes to them
// and keeps what operators change. Each domain has a pool of places and a manager
// that scales it. Balancer moves places to where the work is; BurstHandler adds
// some for a while when demand jumps.
//
// A pool's worker is the process of the request that it executes: it stands under
// request_sup, outside of this subtree, whose one_for_all must not end requests.
// A place is a number, so nothing has to be started, pinged or replaced.
//
// # State
//
// [Heijunka], the handle, has what requests touch: the gate with its table of
// tokens, each pool's numbers and waiters, the surge under way. It outlives every
// actor. An actor that starts again loses only what it measures itself: the
// baseline of bursts. PostgreSQL has what operators changed.
//
// # Failure
//
// A token and a place belong to a call of [Heijunka.Do], which gives both back
// however it ends. The actors are in no request's way: while they are down,
// requests are levelled by what was decided last.
//
// # Concurrency
//
// The handle's methods may be called from any goroutine. The gate and each pool
// have a mutex that is held for moments; a pool's may be held when the gate's is
// taken, not the other way round. No request waits for an actor's mailbox.
package heijunka
