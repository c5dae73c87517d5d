//go:build unix && !linux

package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// groupAttr puts a command into a group of its own. There is no death signal
// here; the guard does its work.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit can't wait without reaping here.
func awaitExit(int) bool { return false }

// groupAlive reports whether a group has processes.
func groupAlive(pid int) bool { return !errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) }

// unlinked can't be known here.
func unlinked(string) int64 { return 0 }

// cgroup stands for what only Linux has.
type cgroup struct {
	dir    string
	limits Resources
}

func openCgroups(context.Context, Resources) (string, error) {
	return "", errors.New("CPU and memory limits of --exec need Linux with cgroup v2")
}

func (cgroup) open(*syscall.SysProcAttr) (*os.File, error) { return nil, errors.ErrUnsupported }
func (cgroup) blame(err error) error                       { return err }
func (cgroup) cleanup() []string                           { return nil }

// self is the program that runs.
func self() (string, error) { return os.Executable() }

// killUser kills every process of a user. See kill(2) about -1.
func killUser(uid int) error {
	if err := syscall.Setuid(uid); err != nil {
		return err
	}
	return syscall.Kill(-1, syscall.SIGKILL)
}

// ofSystem is where the programs are that launchd runs for each user, and again when they
// were killed. Builds can't change them. Those of a login at the screen are elsewhere.
var ofSystem = regexp.MustCompile(`^/(System/Library/(Private)?Frameworks|usr/libexec|usr/sbin)/`)

// processes lists those of the owner that are not dead.
func (o *Owner) processes(ctx context.Context) (list []string, err error) {
	said, err := exec.CommandContext(ctx, "ps", "-axo", "pid=,stat=,uid=,ruid=,comm=").Output()
	for line := range strings.Lines(string(said)) {
		f := strings.Fields(line)
		if len(f) > 4 && slices.Contains(f[2:4], o.id()) && !strings.HasPrefix(f[1], "Z") && !ofSystem.MatchString(f[4]) {
			list = append(list, fmt.Sprintf("%s %q", f[0], f[4]))
		}
	}
	return list, err
}

func noNewPrivileges() error { return nil }
