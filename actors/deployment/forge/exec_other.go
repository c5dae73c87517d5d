//go:build !linux

package forge

import "syscall"

func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit returns false, because this platform can't wait without reaping.
func awaitExit(int) bool { return false }
