package runner

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest/needs"
)

// delegated makes a cgroup for a worker, as systemd does with Delegate=yes. It skips the
// test where root has no cgroup v2 with the controllers.
func delegated(t *testing.T) string {
	t.Helper()
	mounts := must(procfs.GetMounts())(t)
	for _, m := range mounts {
		control, _ := os.ReadFile(filepath.Join(m.MountPoint, "cgroup.subtree_control"))
		if m.FSType != "cgroup2" || !containsAll(string(control), "cpu", "memory", "pids") {
			continue
		}
		dir, err := os.MkdirTemp(m.MountPoint, "takt-test-") // a cgroup, not a directory
		needs.Allowed(t, "cgroups v2", err)
		t.Cleanup(func() {
			await(t, "the cgroup is empty", func() bool { _ = os.Remove(filepath.Join(dir, "takt-worker")); return os.Remove(dir) == nil })
		})
		return dir
	}
	needs.Allowed(t, "cgroups v2", errors.New("no cgroup v2 with the controllers cpu, memory and pids here"))
	return ""
}

func TestExecInACgroup(t *testing.T) {
	t.Parallel()
	dir := delegated(t)
	// The command says its limits, leaves a process that has left the group, and either
	// ends well or takes too much memory.
	const script = `cd /sys/fs/cgroup/$(sed -n 's/^0:://p' /proc/self/cgroup) && echo "limits $(cat memory.max pids.max cpu.max | tr '\n' ' ')"
setsid sleep 1000 & echo "pids $!"
if [ "$TAKT_PLATFORM" = ios ]; then echo x > "$TAKT_OUTPUT"; else dd if=/dev/zero of=/dev/null bs=200M count=1; fi`
	b := newBench(t, "")
	well, greedy := b.Submit("ios", source(t), nil), b.Submit("android", source(t), nil)
	cgroup := must(os.Open(dir))(t)
	defer cgroup.Close()
	process := startProcess(t, b.URL, b.worker.cfg.StateDir, script, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "RUNNER_TEST_MEMORY=67108864")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	})
	b.AwaitState(t, well, store.Completed)
	require.Equal(t, "limits 67108864 4096 50000 100000 ", b.line(well, "limits "))
	require.Contains(t, b.AwaitState(t, greedy, store.Failed).ErrorMessage, "build exceeded its memory limit of 64 MiB")
	for _, id := range []string{well, greedy} {
		awaitDead(t, b.pids(t, id)...)
		require.Empty(t, b.line(id, "not all limits hold"))
	}
	require.NoError(t, process.Process.Signal(syscall.SIGINT))
	require.NoError(t, process.Wait())
	require.Empty(t, must(filepath.Glob(filepath.Join(dir, "takt-build*")))(t))
}

// TestKilledWorkerLeavesNothingInACgroup kills a worker while its command has a process
// outside of the group.
func TestKilledWorkerLeavesNothingInACgroup(t *testing.T) {
	t.Parallel()
	dir := delegated(t)
	b := newBench(t, "")
	id := b.Submit("ios", source(t), nil)
	cgroup := must(os.Open(dir))(t)
	defer cgroup.Close()
	process := startProcess(t, b.URL, b.worker.cfg.StateDir, `setsid sleep 1000 & echo "pids $$ $!"; wait`, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "RUNNER_TEST_MEMORY=67108864")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	})
	pids := b.pids(t, id)
	require.NoError(t, process.Process.Kill())
	require.Error(t, process.Wait())
	awaitDead(t, pids...)
}
