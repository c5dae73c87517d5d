// Package tied starts child processes that end with this process, also when it is killed or
// a test's time limit ends it.
//
// # State
//
// A shell beside each child waits for the child's end or this process's.
//
// # Failure
//
// A child without its shell is killed at once.
//
// # Concurrency
//
// Start may be called from any goroutine.
package tied

import (
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// watch ends the process $1 when standard input ends without a line: by SIGTERM, and ten
// seconds later by SIGKILL.
const watch = `read -r line && exit
exec 2>&-
kill -TERM $1
kill -CONT $1
for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 $1 || exit; sleep 1; done
kill -KILL $1`

// Start starts cmd. The caller has to call wait, which is cmd.Wait.
func Start(cmd *exec.Cmd) (wait func() error, err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	shell := exec.Command("/bin/sh", "-c", watch, "sh", strconv.Itoa(cmd.Process.Pid)) // it ends with the child
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                            // an interrupt at the terminal does not reach it
	input, err := shell.StdinPipe()
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	return func() error {
		err := cmd.Wait()
		_, _ = io.WriteString(input, "ended\n")
		_ = shell.Wait()
		return err
	}, nil
}
