//go:build unix && !linux

package runner

// Init does nothing here: there are no containers.
func Init([]string) (code int, ran bool) { return 0, false }
