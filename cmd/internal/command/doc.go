// Package command assembles the takt command from the packages that contain its parts.
//
// # State
//
// None.
//
// # Failure
//
// See package cli.
//
// # Concurrency
//
// See the packages of the parts.
package command
