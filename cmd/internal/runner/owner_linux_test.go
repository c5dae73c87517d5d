package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
	"takt/store/storetest/needs"
)

var lastUser atomic.Int64

// newOwners returns users that nothing else on this machine has. It skips the test unless
// root runs it.
func newOwners(t *testing.T, n int) (owners []*Owner) {
	t.Helper()
	needs.Root(t)
	for range n {
		// No process has a number above 1<<22, so that each run of the tests has its own.
		uid := int64(1+lastUser.Add(1))<<22 + int64(os.Getpid())
		o := must(FindOwner(strconv.FormatInt(uid, 10)))(t)
		t.Cleanup(func() {
			require.NoError(t, o.kill(context.WithoutCancel(t.Context())))
			_ = os.Remove(o.lockPath())
		})
		owners = append(owners, o)
	}
	return owners
}

// ownedBench makes a worker whose builds run as owners.
func ownedBench(t *testing.T, script string, owners []*Owner, edit ...func(*Config)) *bench {
	t.Helper()
	return newBench(t, script, append(edit, func(c *Config) {
		c.Owners, c.Concurrency = owners, len(owners)
		require.NoError(t, os.Chmod(filepath.Dir(c.StateDir), 0o711))
	})...)
}

// shared makes a directory in which every user may write.
func shared(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o711))
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

// TestBuildsOfUsersSeeNothingOfEachOther has a build with certificates and one that looks
// for them, at the same time.
func TestBuildsOfUsersSeeNothingOfEachOther(t *testing.T) {
	t.Parallel()
	meet := shared(t)
	b := ownedBench(t, `cd `+meet+`; umask 0
if [ "$TAKT_CERTS" ]; then
	cat "$TAKT_CERTS/p.txt"; echo "$TAKT_CERTS" > where; mv where at; until [ -e done ]; do sleep 0.01; done
else
	until [ -e at ]; do sleep 0.01; done
	at=$(cat at); ls "$at" "$at/../../.." 2>&1; cat "$at/p.txt" 2>&1
	for p in /proc/[0-9]*; do [ "$p" = /proc/self ] || { tr '\0' '\n' < $p/environ | grep TAKT_CERTS; } 2>/dev/null; done
	touch done
fi
echo x > "$TAKT_OUTPUT"`, newOwners(t, 2))
	victim := b.Submit("ios", source(t), archive(t, entry{name: "p.txt", content: "secret\n"}))
	thief := b.Submit("ios", source(t), nil)
	b.start(t)
	b.AwaitState(t, victim, store.Completed)
	b.AwaitState(t, thief, store.Completed)
	require.NotEmpty(t, b.line(victim, "secret"))
	require.NotEmpty(t, b.line(thief, "Permission denied"))
	said := fmt.Sprint(b.Build(thief).Logs)
	require.NotContains(t, said, "secret")
	require.NotContains(t, said, "TAKT_CERTS=")
}

// TestNothingOfABuildIsLeftForTheNext has a build leave processes outside of its group: one
// that stays, and one that forks and ends all the time.
func TestNothingOfABuildIsLeftForTheNext(t *testing.T) {
	t.Parallel()
	dir := shared(t)
	b := ownedBench(t, `cd `+dir+`; umask 0
[ -e stay ] || {
	setsid sh -c 'trap "" HUP INT TERM; echo $$ > stay; while :; do sleep 1; done' &
	echo 'echo $(($(cat hops) + 1)) > next; mv next hops; setsid sh hop & exit' > hop; echo 0 > hops
	setsid sh hop &
	until [ -s stay ] && [ "$(cat hops)" -gt 3 ]; do sleep 0.01; done
	cd; echo x > "$TAKT_OUTPUT"; exit
}
grep State: /proc/"$(cat stay)"/status | grep -qv Z && echo it stayed
hops=$(cat hops); sleep 0.5; [ "$hops" = "$(cat hops)" ] || echo it hops
echo looked; cd; echo x > "$TAKT_OUTPUT"`, newOwners(t, 1))
	b.start(t)
	b.completes(t)
	id := b.Submit("ios", source(t), nil)
	b.AwaitState(t, id, store.Completed)
	require.NotEmpty(t, b.line(id, "looked"))
	require.Empty(t, b.line(id, "it stayed"))
	require.Empty(t, b.line(id, "it hops"))
	require.Empty(t, must(b.worker.cfg.Owners[0].processes(t.Context()))(t))
}

// TestBuildOfAUserGetsNoMorePrivileges by setuid programs.
func TestBuildOfAUserGetsNoMorePrivileges(t *testing.T) {
	t.Parallel()
	owner := newOwners(t, 1)
	b := ownedBench(t, `grep NoNewPrivs /proc/self/status; echo "$(id -u) $(id -G) $HOME $USER"; echo x > "$TAKT_OUTPUT"`, owner).start(t)
	id := b.Submit("ios", source(t), nil)
	b.AwaitState(t, id, store.Completed)
	require.Equal(t, "NoNewPrivs:\t1", b.line(id, "NoNewPrivs"))
	// HOME as the test's own environment sets it, like --env does.
	require.NotEmpty(t, b.line(id, fmt.Sprintf("%[1]s %[1]s /nowhere %[1]s", owner[0].id())))
}

// TestKilledWorkerOfAUser leaves nothing behind, also what left the process group.
func TestKilledWorkerOfAUser(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	owner := newOwners(t, 1)[0]
	require.NoError(t, os.Chmod(filepath.Dir(b.worker.cfg.StateDir), 0o711))
	id := b.Submit("ios", source(t), nil)
	process := startProcess(t, b.URL, b.worker.cfg.StateDir, `setsid sh -c 'echo "left $$"; exec sleep 1000' & wait; sleep 1000`,
		func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "RUNNER_TEST_USER="+owner.id()) })
	b.Await(t, "the build runs", b.has(id, "left "))
	require.NoError(t, process.Process.Kill())
	require.Error(t, process.Wait())
	await(t, "all is ended", func() bool { left, err := owner.processes(t.Context()); return err == nil && len(left) == 0 })
}

// TestUserWithProcessesIsRefused because they may be anybody's, unless a worker was killed.
func TestUserWithProcessesIsRefused(t *testing.T) {
	t.Parallel()
	owners := newOwners(t, 1)
	daemon := exec.Command("sleep", "1000")
	daemon.SysProcAttr = &syscall.SysProcAttr{Credential: owners[0].Credential}
	require.NoError(t, daemon.Start())
	reap := make(chan error, 1)
	go func() { reap <- daemon.Wait() }()
	t.Cleanup(func() { _ = daemon.Process.Kill() })

	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("it works"))
	defer cancel()
	b := ownedBench(t, "true", owners)
	require.EqualError(t, b.worker.Run(ctx), fmt.Sprintf(
		`this worker can't run builds: user %s has processes already (%d "sleep"): builds need users that nothing else uses`, owners[0].Name, daemon.Process.Pid))
	require.NoError(t, daemon.Process.Signal(syscall.Signal(0)), "it goes on")
	require.Empty(t, b.Workers())

	require.NoError(t, os.MkdirAll(filepath.Join(b.worker.cfg.StateDir, "builds", "lost-1"), 0o700))
	b.start(t)
	require.EqualError(t, <-reap, "signal: killed")
	b.Await(t, "it polls", func() bool { return b.Polls() > 0 })

	other := ownedBench(t, "true", owners)
	require.EqualError(t, other.worker.Run(ctx), "this worker can't run builds: user "+owners[0].Name+": another worker uses it")
}

// TestSlotWithProcessesThatCannotBeEnded freezes one, which then does not even end by
// SIGKILL, as in uninterruptible sleep.
func TestSlotWithProcessesThatCannotBeEnded(t *testing.T) {
	t.Parallel()
	owners := newOwners(t, 1)
	freezer, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "takt-test-") // a cgroup, not a directory
	needs.Allowed(t, "cgroups v1", err)                                  // it holds up SIGKILL
	thaw := func() { require.NoError(t, put(freezer, "freezer.state", "THAWED")) }
	t.Cleanup(func() { thaw(); await(t, "the cgroup is empty", func() bool { return os.Remove(freezer) == nil }) })
	dir := shared(t)
	b := ownedBench(t, `cd `+dir+`; [ -e pid ] || {
	cp "$(command -v sleep)" "$NAME"; chmod 755 "$NAME"
	setsid sh -c 'echo $$ > new; mv new pid; exec ./"$NAME" 1000' & until [ -e go ]; do sleep 0.01; done; }
cd; echo x > "$TAKT_OUTPUT"`, owners, func(c *Config) { c.Telemetry, c.AcceptSecrets = 10*time.Millisecond, true })
	first := b.submitWith(t, api.HeldInputs{Secrets: []api.HeldSecret{{Name: "NAME", As: "env", Value: []byte("hunter2"), Mask: true}}})
	b.start(t)
	var pid []byte
	await(t, "it stays", func() bool { pid, err = os.ReadFile(filepath.Join(dir, "pid")); return err == nil })
	require.NoError(t, put(freezer, "cgroup.procs", strings.TrimSpace(string(pid))))
	require.NoError(t, put(freezer, "freezer.state", "FROZEN"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	b.AwaitState(t, first, store.Completed)
	second := b.Submit("ios", source(t), nil)
	b.Await(t, "the worker says so", b.reports("critical"))
	require.Contains(t, fmt.Sprint(b.Workers()[0].Report.Checks), "1 of 1 slots take no builds: ending the processes of user "+owners[0].Name+": still there: "+strings.TrimSpace(string(pid))+` "***"`)
	require.Equal(t, store.Pending, b.Build(second).State)
	thaw()
	b.AwaitState(t, second, store.Completed)
	b.Await(t, "it is well again", b.fit)
}

// TestProcessThatEndsAllOthersOfItsUser can't keep itself from being ended so.
func TestProcessThatEndsAllOthersOfItsUser(t *testing.T) {
	t.Parallel()
	owner := newOwners(t, 1)[0]
	hostile := exec.Command("/bin/sh", "-c", "while :; do kill -STOP -1; done")
	hostile.SysProcAttr = &syscall.SysProcAttr{Credential: owner.Credential}
	require.NoError(t, hostile.Start())
	require.NoError(t, owner.endProcesses(t.Context(), 20*time.Second))
	require.EqualError(t, hostile.Wait(), "signal: killed")
}

func TestFindOwner(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"root": `user "root" is root`, "0": `user "0" is root`, "no-such-user": `no user "no-such-user"`, "-1": `no user "-1"`,
		"4294967295": `no user "4294967295"`, "99999999999": `no user "99999999999"`,
	} {
		_, err := FindOwner(name)
		require.EqualError(t, err, want)
	}
	owners := newOwners(t, 2)
	cfg := Config{Name: "w", StateDir: "d", Command: &Exec{}, Owners: owners, Concurrency: 3}.withDefaults()
	require.EqualError(t, cfg.Validate(), "2 users for 3 builds at once: each needs a user of its own, such as --user build1,build2; or run fewer at once, with --concurrency 2")
	cfg.Concurrency, cfg.Owners = 1, []*Owner{owners[0], owners[0]}
	require.EqualError(t, cfg.Validate(), fmt.Sprintf("users %q and %[1]q are the same", owners[0].Name))
}

func TestHelperEndsNothingOfRoot(t *testing.T) {
	t.Parallel()
	for _, uid := range []string{"0", "-1", "4294967295", "4294967296", "x", ""} {
		code, ran := Helper([]string{"takt", helperName, uid})
		require.True(t, ran)
		require.Equal(t, 1, code)
	}
	_, ran := Helper([]string{"takt", "worker", "1"})
	require.False(t, ran)
}
