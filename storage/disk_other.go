//go:build !linux

package storage

// flushBehind does nothing here, because only Linux supports the hint.
func (*tempWriter) flushBehind() {}
