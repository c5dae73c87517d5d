// Package limiter limits how many units of something are held at once, and who gets the next
// one: places of pools, connections of streams, bodies that are read.
//
// # State
//
// A [Limiter] counts the units that each [store.Share] holds, and the shares that wait for one.
// A share without units and waiters takes no memory.
//
// # Fairness
//
// Waiters of a share get units in order of arrival. Shares of a credential take turns, and so do
// credentials, so that one who asks for much delays others by one unit at most. A fair limiter
// also leaves units free: nobody holds more than a multiple of what is left.
//
// # Concurrency
//
// All methods may be called from any goroutine. One lock is held for as long as the heap of the
// waiting credentials takes, never while somebody waits.
package limiter
