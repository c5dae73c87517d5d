//go:build !linux

package forge

import "syscall"

func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit can't wait without reaping here.
func awaitExit(int) bool { return false }
