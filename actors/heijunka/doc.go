// Package heijunka levels the load: it limits how many requests are admitted at once,
// and each runs in a place of its domain's pool.
//
//	request ──▶ gate ──▶ route ──▶ pool ──▶ process ──▶ handler
//	            token     │         place
//	            or 503    └ own pool, else the least loaded of its list
//
// LoadRegulator owns the gate's limits, compares the load with them and saves what
// operators change. Each domain has a pool of places and a manager that scales it.
// Balancer moves places to busier pools. BurstHandler adds places for a while when
// demand jumps.
//
// The process of a request that holds a place is a child of request_sup and not of this
// subtree, because this subtree's one_for_all must not end requests. A place is only a
// number, so nothing has to be started, pinged or replaced.
//
// # State
//
// [Heijunka], the handle, holds what requests use: the gate with its table of tokens,
// each pool's numbers and waiters, the current surge. It outlives every actor. A
// restart loses only what an actor measures itself: the baseline of bursts. PostgreSQL
// holds what operators changed.
//
// # Failure
//
// A token and a place belong to a call of [Heijunka.Do], which gives both back
// however it ends. No request needs an actor: while the actors are down, the last
// limits and sizes stay in force.
//
// # Concurrency
//
// The handle's methods may be called from any goroutine. The gate and each pool have a
// mutex that is held only briefly. Lock order: a pool's mutex before the gate's. No
// request waits for an actor's mailbox.
package heijunka
