// Package must is for programs that measure or try takt: what fails ends one measurement, as a
// failed require ends a test, and not the program.
//
// # State
//
// None.
//
// # Failure
//
// Do and Get panic with an error of this package's own type. Try, which calls a measurement or
// what is started first, returns that error. Any other panic goes on.
//
// # Concurrency
//
// A goroutine that uses Do or Get is started by Beside or Spread, or calls Try itself.
package must

import (
	"errors"
	"sync"
)

type failure struct{ error }

// Do fails if there is an error.
func Do(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Get returns v, and fails if there is an error.
func Get[T any](v T, err error) T {
	Do(err)
	return v
}

// Try returns the error with which f failed.
func Try(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			failed, ok := p.(failure)
			if !ok {
				panic(p)
			}
			err = failed.error
		}
	}()
	f()
	return nil
}

// Beside runs f in a goroutine. wait returns how it failed.
func Beside(f func()) (wait func() error) {
	ended := make(chan error, 1)
	go func() { ended <- Try(f) }()
	return func() error { return <-ended }
}

// Spread calls f for 0 to n-1 in so many goroutines. Each ends with its first error.
func Spread(goroutines, n int, f func(i int)) error {
	errs := make([]error, min(goroutines, n))
	var all sync.WaitGroup
	for k := range errs {
		all.Go(func() {
			errs[k] = Try(func() {
				for i := k; i < n; i += len(errs) {
					f(i)
				}
			})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
