package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is the program that runs, even if its file was replaced since.
func self() (string, error) { return "/proc/self/exe", nil }

// killUser kills every process of a user. The kernel goes through all processes at once,
// and none of those that it kills finishes a fork, so that none escapes. See kill(2) about
// -1.
//
// Only one thread changes its user, right before the signal, and it does not change back. It
// is not the first one, by whose user the kernel judges signals to the whole process: so
// none of the user's processes can end or stop this one first.
func killUser(uid int) error {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		killed := make(chan error)
		go func() { killed <- killUser(uid) }()
		return <-killed
	}
	id := uintptr(uid)
	if _, _, err := syscall.RawSyscall(unix.SYS_SETRESUID, id, id, id); err != 0 {
		return err
	}
	if r, e, s := unix.Getresuid(); r != uid || e != uid || s != uid { // -1 would kill the machine's
		return fmt.Errorf("the user is %d, %d, %d", r, e, s)
	}
	return unix.Kill(-1, unix.SIGKILL)
}

// processes lists those of the owner that are not dead, by any of their user ids: real,
// effective, saved, of the file system. See proc_pid_status(5).
func (o *Owner) processes(context.Context) (list []string, err error) {
	paths, _ := filepath.Glob("/proc/[0-9]*/status") // the pattern is good
	if len(paths) == 0 {
		return nil, errors.New("/proc lists no processes")
	}
	for _, path := range paths {
		raw, _ := os.ReadFile(path) // gone, should it fail
		status := map[string]string{}
		for line := range strings.Lines(string(raw)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.TrimSpace(value)
		}
		dead := strings.HasPrefix(status["State"], "Z") || strings.HasPrefix(status["State"], "X")
		if slices.Contains(strings.Fields(status["Uid"]), o.id()) && !dead {
			list = append(list, fmt.Sprintf("%s %q", status["Pid"], status["Name"]))
		}
	}
	return list, nil
}

// noNewPrivileges makes setuid programs useless to what this thread starts. A build could
// leave one that runs as its user, for another user's build to start later.
func noNewPrivileges() error {
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
