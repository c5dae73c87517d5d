package database

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// pidFileName is the lock file that a running server keeps in its cluster.
const pidFileName = "postmaster.pid"

// These are the states that a server writes into it. Before the first, there is none.
const (
	statusStarting = "starting" // starts or recovers
	statusReady    = "ready"    // accepts connections
	statusStopping = "stopping"
)

// pidFile is the part of postmaster.pid that takt needs.
type pidFile struct {
	PID    int
	Status string // one of the above, or empty
}

// parsePIDFile reads the text of a postmaster.pid. Its lines are: process id,
// data directory, start time, port, socket directory, listen address, shared
// memory key and id, status; a server that is starting has written fewer. A
// negative process id marks a single-user server, which counts the same. An unreadable file
// (from a power failure during the write) counts as that of process 0, which never lives.
func parsePIDFile(text string) (f pidFile) {
	lines := strings.Split(text, "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(lines[0]))
	f.PID = max(pid, -pid)
	if pid != 0 && len(lines) > 7 {
		f.Status = strings.TrimSpace(lines[7])
	}
	return f
}

// readLockFile returns one of a server's lock files, and false if there is none.
func readLockFile(root *os.Root, name string) (pidFile, bool, error) {
	text, err := root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return pidFile{}, false, nil
	}
	if err != nil {
		return pidFile{}, false, fmt.Errorf("reading the server's lock file: %w", err)
	}
	return parsePIDFile(string(text)), true, nil
}

// identity classifies the process that a lock file names.
type identity int

const (
	// gone: no such process, or a zombie.
	gone identity = iota
	// server: a PostgreSQL process that works in this cluster.
	server
	// foreign: another program has the process id now.
	foreign
	// unclear: it is alive, but this system does not show its working directory.
	unclear
)

func (i identity) String() string {
	return [...]string{"gone", "server", "foreign", "unclear"}[i]
}
