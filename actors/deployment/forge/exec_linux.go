package forge

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupAttr puts git into a group of its own; should takt be killed, its leader
// goes along at once, and the rest with their pipes.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until a process has ended and leaves it to be reaped. It
// reports false where that can't be done.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
