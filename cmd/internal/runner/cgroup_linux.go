package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
)

// cgroup is the control group, version 2, of one build. See the kernel's
// Documentation/admin-guide/cgroup-v2.rst.
type cgroup struct {
	dir    string
	limits Resources
}

// openCgroups returns the directory in which cgroups can be made that hold limits: the
// worker's own cgroup, if that was delegated to it. The error is why not.
func openCgroups(ctx context.Context, limits Resources) (string, error) {
	dir, err := ownCgroup()
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return "", err
	}
	need := limits.controllers()
	for _, name := range need {
		if !slices.Contains(strings.Fields(string(raw)), name) {
			return "", fmt.Errorf("the cgroup %s has no %s controller", dir, name)
		}
	}
	control := func() error { return put(dir, "cgroup.subtree_control", "+"+strings.Join(need, " +")) }
	if err = control(); errors.Is(err, syscall.EBUSY) {
		// Only a cgroup without processes can have some that are limited.
		if err = enter(filepath.Join(dir, "takt-worker")); err == nil {
			err = control()
		}
		if errors.Is(err, syscall.EBUSY) {
			err = errors.Join(fmt.Errorf("other processes are in the cgroup %s: give the worker its own, with systemd's Delegate=yes", dir), enter(dir))
		}
	}
	if err != nil {
		return "", err
	}
	return dir, cgroup{filepath.Join(dir, "takt-probe"), limits}.probe(ctx)
}

// ownCgroup is the directory of the worker's cgroup.
func ownCgroup() (string, error) {
	self, err := procfs.Self()
	if err != nil {
		return "", err
	}
	groups, err := self.Cgroups()
	if err != nil {
		return "", err
	}
	mounts, err := self.MountInfo()
	if err != nil {
		return "", err
	}
	for _, g := range groups {
		for _, m := range mounts {
			inside, ok := strings.CutPrefix(g.Path, strings.TrimSuffix(m.Root, "/"))
			if g.HierarchyID == 0 && m.FSType == "cgroup2" && ok {
				return filepath.Join(m.MountPoint, inside), nil
			}
		}
	}
	return "", errors.New("no cgroup v2 here")
}

// enter moves this process to a cgroup, which is made.
func enter(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as other cgroups are
		return err
	}
	return put(dir, "cgroup.procs", strconv.Itoa(os.Getpid()))
}

// probe runs a process, because only that shows that one can be put into the cgroup.
func (g cgroup) probe(ctx context.Context) error {
	attr := &syscall.SysProcAttr{}
	opened, err := g.open(attr)
	if err != nil {
		return err
	}
	defer os.Remove(g.dir) // an empty cgroup does no harm
	defer opened.Close()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", ":")
	cmd.SysProcAttr = attr
	return cmd.Run()
}

// open makes the cgroup and lets the process with attr begin in it. The file must be open
// until then.
func (g cgroup) open(attr *syscall.SysProcAttr) (*os.File, error) {
	if err := os.Mkdir(g.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as other cgroups are
		return nil, err
	}
	var faults []error
	if g.limits.CPUs > 0 {
		const period = 100_000 // µs
		faults = append(faults, put(g.dir, "cpu.max", fmt.Sprintf("%d %d", int64(g.limits.CPUs*period), period)))
	}
	if g.limits.Memory > 0 {
		swap := put(g.dir, "memory.swap.max", "0")
		if errors.Is(swap, fs.ErrNotExist) { // the kernel has none
			swap = nil
		}
		faults = append(faults, swap,
			put(g.dir, "memory.max", strconv.FormatInt(g.limits.Memory, 10)),
			put(g.dir, "memory.oom.group", "1"), // all of the build ends, not some process of it
			put(g.dir, "pids.max", strconv.Itoa(maxProcesses)))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	f, err := os.Open(g.dir)
	if err != nil {
		return nil, err
	}
	attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
	return f, nil
}

// blame returns the limit that ended a command, or err.
func (g cgroup) blame(err error) error {
	raw, _ := os.ReadFile(filepath.Join(g.dir, "memory.events")) // none without a limit
	for line := range strings.Lines(string(raw)) {
		if name, n, _ := strings.Cut(strings.TrimSpace(line), " "); name == "oom_kill" && n != "0" {
			return g.limits.memoryLimit()
		}
	}
	return err
}

// cleanup ends what is left in the cgroup, also what has left the process group, and
// removes it.
func (g cgroup) cleanup() []string {
	return []string{"/bin/sh", "-c", `echo 1 >"$1/cgroup.kill"
n=0; until rmdir "$1" || [ $n -ge 100 ]; do n=$((n+1)); sleep 0.05; done 2>/dev/null`, "takt-cgroup", g.dir}
}

// put writes to a file of a cgroup.
func put(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
