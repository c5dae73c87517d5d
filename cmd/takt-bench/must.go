package main

import (
	"errors"
	"sync"
)

// failure is what a step that failed panics with. It ends its measurement, as a failed
// require ends a test; attempt makes it an error again.
type failure struct{ error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns v, unless there is an error.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// attempt returns the error of the step with which f failed.
func attempt(f func()) (err error) {
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

// beside runs f in a goroutine. wait returns how it failed.
func beside(f func()) (wait func() error) {
	ended := make(chan error, 1)
	go func() { ended <- attempt(f) }()
	return func() error { return <-ended }
}

// spread calls f for 0 to n-1 in so many goroutines. Each ends with its first error.
func spread(goroutines, n int, f func(i int)) error {
	errs := make([]error, min(goroutines, n))
	var all sync.WaitGroup
	for k := range errs {
		all.Go(func() {
			errs[k] = attempt(func() {
				for i := k; i < n; i += len(errs) {
					f(i)
				}
			})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
