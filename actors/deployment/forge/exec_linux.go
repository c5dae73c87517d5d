package forge

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupAttr puts git into its own process group. If takt is killed, the group's leader is
// killed at once. The other processes end when their pipes close.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until a process has ended, without reaping it. It returns false if the
// system can't do that.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
