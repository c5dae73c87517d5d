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

// hasProc says that an open directory has a path of its own, by which a child
// reaches it although the parents of the real path are closed to it.
const hasProc = runtime.GOOS == "linux"

// inherited returns how a child names the open directory and which files it
// has to inherit for that.
func inherited(home *os.File, realPath string) (path string, files []*os.File) {
	if !hasProc {
		return realPath, nil
	}
	return "/proc/self/fd/" + strconv.Itoa(firstInherited), []*os.File{home}
}

// inheritedPath names descriptor fd in a child.
func inheritedPath(fd int) string {
	if hasProc {
		return "/proc/self/fd/" + strconv.Itoa(fd)
	}
	return "/dev/fd/" + strconv.Itoa(fd)
}

// environment is all that PostgreSQL's programs get: nothing of takt's own
// environment (PGDATA, PGOPTIONS, secrets) reaches them.
func environment(bins Binaries) []string {
	return []string{"PATH=" + bins.Dir + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
}

// processAttributes puts a child into its own process group, out of reach of
// the terminal's Ctrl-C, and gives it the cluster's account.
func processAttributes(to owner) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: to.credential()}
}

// runTool runs one of PostgreSQL's programs to its end, with takt's death as
// its own. The error holds what the program printed last.
func (cl *cluster) runTool(ctx context.Context, program string, args []string, stdin io.Reader, files []*os.File) error {
	cmd := exec.CommandContext(ctx, cl.bins.path(program), args...)
	cmd.Dir = "/" // the program returns to its working directory, which has to be open to its account
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

// passwordPipe returns a pipe that holds the password, readable by the
// account: no file, no argument, and gone with its reader.
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
		_, err = w.WriteString(password + "\n") // far below a pipe's capacity
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
