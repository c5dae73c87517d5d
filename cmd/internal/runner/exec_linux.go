package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupAttr puts a command into a group of its own and, should the worker be
// killed, takes its leader along at once; the guard takes the rest.
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

// groupAlive reports whether a group has processes that are not zombies. Zombies count for
// kill but not here: where process 1 reaps nothing, as in many containers, they stay for ever.
func groupAlive(pid int) bool {
	if errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) {
		return false
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return true
	}
	group := strconv.Itoa(pid)
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // gone
		}
		// pid (name) state parent group …; the name may hold anything.
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		if len(fields) > 2 && fields[2] == group && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

// unlinked is what deleted files below root take up that some process has open, in bytes.
// Those that are only mapped are not seen, nor those that a container has open.
func unlinked(root string) (bytes int64) {
	seen := map[uint64]bool{}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is good
	for _, file := range files {
		name, _ := os.Readlink(file) // closed, should it fail
		if !strings.HasPrefix(name, root+"/") || !strings.HasSuffix(name, " (deleted)") {
			continue
		}
		var stat syscall.Stat_t
		if syscall.Stat(file, &stat) == nil && stat.Nlink == 0 && !seen[stat.Ino] {
			seen[stat.Ino] = true
			bytes += stat.Blocks * 512
		}
	}
	return bytes
}
