package runner

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
)

// Init is the first process of a container in which a worker runs, if this process is one: it
// runs the worker as its child, passes signals on to it, and takes leave of the processes that
// builds leave behind. It returns the worker's exit code, and reports whether it did that. An
// init program of the engine would show the worker's keys to builds, which run as the same
// user, in /proc/1/environ. A program with workers calls it first.
func Init(args []string) (code int, ran bool) {
	if os.Getpid() != 1 || len(args) < 2 || args[1] != "worker" {
		return 0, false
	}
	// Before the child starts: it may end at once.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	child, err := os.StartProcess("/proc/self/exe", args, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		// A terminal's Ctrl-C would reach it twice, and the second one kills builds.
		Sys: &unix.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "takt:", err)
		return 1, true
	}
	if err := Hide(longValues(args, os.Environ())...); err != nil { // the worker warns of it, too
		fmt.Fprintln(os.Stderr, "takt: keys are not hidden from builds:", err)
	}
	go func() {
		for s := range signals {
			if s != unix.SIGCHLD && s != unix.SIGURG { // the latter is the Go runtime's own
				_ = child.Signal(s) // it may have ended
			}
		}
	}()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "takt: waiting for the worker:", err)
			return 1, true
		case pid != child.Pid:
		case status.Signaled():
			return 128 + int(status.Signal()), true
		case status.Exited():
			return status.ExitStatus(), true
		}
	}
}

// longValues returns the arguments after the first two, and the values of variables, that are
// long enough for a key.
func longValues(args, environ []string) (long []string) {
	values := append([]string(nil), args[2:]...)
	for _, variable := range environ {
		_, value, _ := strings.Cut(variable, "=")
		values = append(values, value)
	}
	for _, v := range values {
		if strings.HasPrefix(v, "--") {
			_, v, _ = strings.Cut(v, "=")
		}
		if len(v) >= 8 {
			long = append(long, v)
		}
	}
	return long
}
