//go:build unix && !linux

package database

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
)

// identify reports whether process pid is a server of the cluster. It uses lsof, because
// macOS and the BSDs have no Linux /proc.
func identify(pid int, cluster os.FileInfo) identity {
	if !alive(pid) {
		return gone
	}
	out, err := exec.Command("lsof", "-a", "-d", "cwd", "-p", strconv.Itoa(pid), "-Fcn").Output() //nolint:noctx // a local look-up of milliseconds
	if err != nil {
		return unclear
	}
	var command, cwd string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "c"):
			command = line[1:]
		case strings.HasPrefix(line, "n"):
			cwd = line[1:]
		}
	}
	info, err := os.Stat(cwd)
	if err != nil || !os.SameFile(info, cluster) || !strings.HasPrefix(command, "post") {
		return foreign
	}
	return server
}

// serversIn always returns none on this platform. PostgreSQL's own check of the shared
// memory keeps a new server from starting beside old backends, and the start is retried.
func serversIn(os.FileInfo) []int { return nil }

func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// dieWithParent does nothing, because this platform has no such signal.
func dieWithParent(*syscall.SysProcAttr) {}

// newLogPipe makes the server's standard error a plain pipe, because closing a named pipe
// does not wake its reader on this platform.
func newLogPipe(_ string, log zerolog.Logger) (*logPipe, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("making the database server's log pipe: %w", err)
	}
	return newPipe(r, log), w, nil
}

// reopenLogPipe always fails, because the pipe of an adopted server ended with the takt
// that made it.
func reopenLogPipe(string, zerolog.Logger) (*logPipe, error) {
	return nil, errors.ErrUnsupported
}
