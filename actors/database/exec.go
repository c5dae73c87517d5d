package database

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// firstInherited is the number of the first extra descriptor in a child.
const firstInherited = 3

// hasProc is true if there is a path for an open descriptor. A child can access an open
// directory by that path even if its account has no access to the parent directories.
const hasProc = runtime.GOOS == "linux"

// inherited returns the path by which a child accesses the open directory, and the files that
// it must inherit for that.
func inherited(home *os.File, realPath string) (path string, files []*os.File) {
	if !hasProc {
		return realPath, nil
	}
	return "/proc/self/fd/" + strconv.Itoa(firstInherited), []*os.File{home}
}

// inheritedPath returns the path of descriptor fd in a child.
func inheritedPath(fd int) string {
	if hasProc {
		return "/proc/self/fd/" + strconv.Itoa(fd)
	}
	return "/dev/fd/" + strconv.Itoa(fd)
}

// environment returns the whole environment of PostgreSQL's programs. They get nothing of
// takt's own environment (PGDATA, PGOPTIONS, secrets).
func environment(bins Binaries) []string {
	return []string{"PATH=" + bins.Dir + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
}

// processAttributes puts a child into its own process group, so that the terminal's
// Ctrl-C does not reach it, and gives it the cluster's account.
func processAttributes(to owner) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: to.credential()}
}

// runTool runs one of PostgreSQL's programs to its end. The program is killed when takt dies.
// The error has the last lines that it printed.
func (cl *cluster) runTool(ctx context.Context, program string, args []string, stdin io.Reader, files []*os.File) error {
	cmd := exec.CommandContext(ctx, cl.bins.path(program), args...)
	cmd.Dir = "/" // the program changes back to its working directory, so its account needs access to it
	cmd.Env = environment(cl.bins)
	cmd.Stdin = stdin
	cmd.ExtraFiles = files
	cmd.SysProcAttr = processAttributes(cl.owner)
	dieWithParent(cmd.SysProcAttr)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, lastLines(output.String(), 3))
	}
	return nil
}

// passwordPipe returns a pipe that has the password and that the account can read. A pipe
// needs no file and no argument, and its contents are gone once they are read.
func passwordPipe(password string, to owner) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("handing over the password: %w", err)
	}
	defer w.Close()
	if to.drop {
		err = r.Chown(int(to.uid), int(to.gid)) // opening /proc/self/fd/N checks the owner
	}
	if err == nil {
		_, err = w.WriteString(password + "\n") // far less than a pipe's capacity
	}
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("handing over the password: %w", err)
	}
	return r, nil
}

// lastLines joins the last n lines of text that are not blank.
func lastLines(text string, n int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], " · ")
}
