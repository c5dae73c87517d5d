//go:build !linux

package main

// clockSynchronised is not known here.
func clockSynchronised() (synchronised, known bool) { return false, false }
