//go:build unix && !linux

package runner

import (
	"errors"
	"syscall"
)

// groupAttr puts a command into a group of its own. There is no death signal
// here; the guard does its work.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit can't wait without reaping here.
func awaitExit(int) bool { return false }

// groupAlive reports whether a group has processes.
func groupAlive(pid int) bool { return !errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) }
