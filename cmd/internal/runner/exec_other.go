//go:build unix && !linux

package runner

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// groupAttr puts a command into a group of its own. There is no death signal
// here; the guard does its work.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit can't wait without reaping here.
func awaitExit(int) bool { return false }

// groupAlive reports whether a group has processes.
func groupAlive(pid int) bool { return !errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH) }

// cgroup stands for what only Linux has.
type cgroup struct {
	dir    string
	limits Resources
}

func openCgroups(context.Context, Resources) (string, error) {
	return "", errors.New("that takes Linux with cgroup v2")
}

func (cgroup) open(*syscall.SysProcAttr) (*os.File, error) { return nil, errors.ErrUnsupported }
func (cgroup) blame(err error) error                       { return err }
func (cgroup) cleanup() []string                           { return nil }
