// Package settings reads what `takt serve` and the commands beside it are told: a table of settings
// (settings.go), of which flags, environment, YAML and docs are made, the keys, and the data
// directory.
//
// # State
//
// The data directory keeps the keys that no setting gives.
//
// # Failure
//
// [Load] reports all that is wrong with the settings at once.
//
// # Concurrency
//
// A Config is read by one goroutine at a time.
package settings
