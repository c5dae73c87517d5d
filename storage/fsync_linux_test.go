package storage

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"takt/store/seal"
	"takt/store/storetest/needs"
)

// withoutFsync is the variable that makes a test run in a process whose fsyncs fail.
const withoutFsync = "TAKT_TEST_WITHOUT_FSYNC"

// Files and their names are synced, and what can't be synced is not acknowledged: the
// kernel refuses every fsync of a process of this test's own.
func TestWhatIsNotSyncedIsRefused(t *testing.T) {
	t.Parallel()
	if os.Getenv(withoutFsync) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run", "^TestWhatIsNotSyncedIsRefused$")
		cmd.Env = append(os.Environ(), withoutFsync+"=yes")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		if bytes.Contains(out, []byte("--- SKIP")) {
			needs.Allowed(t, "seccomp", fmt.Errorf("%s", out))
		}
		return
	}
	dir := t.TempDir()
	l := must(OpenLocal(dir, seal.NewRing(seal.Key{7})))(t)
	defer func() { require.NoError(t, l.Close()) }()
	put(t, l, "builds/b/one", []byte("1"))
	two := must(l.Create(t.Context(), 10, "", strings.NewReader("2")))(t)
	three := must(l.Create(t.Context(), 10, "", strings.NewReader("3")))(t)
	if err := refuseFsync(); err != nil {
		t.Skip(err) // the test outside says what this means
	}

	_, err := l.Create(t.Context(), 10, "", strings.NewReader("2"))
	require.ErrorIs(t, err, unix.EIO, "the content")
	_, err = commit(t.Context(), two, "builds/b/two")
	require.ErrorIs(t, err, unix.EIO, "the name")
	_, err = three.Stage(t.Context(), "builds/c/three")
	require.ErrorIs(t, err, unix.EIO, "its directory, before it is renamed")
	three.Discard()
	require.Empty(t, temporaries(t, dir))
}

// refuseFsync makes fsync fail with EIO in all threads of this process (seccomp(2)).
func refuseFsync() error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no filter: %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return fmt.Errorf("no filter: %w", errno)
	}
	return nil
}
