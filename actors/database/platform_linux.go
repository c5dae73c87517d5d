package database

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// identify reports whether process pid is a server of the cluster. A server's working
// directory is its cluster. The directories are compared by device and inode, because the
// recorded path may be /proc/self/fd/3.
func identify(pid int, cluster os.FileInfo) identity {
	if !alive(pid) {
		return gone
	}
	proc := "/proc/" + strconv.Itoa(pid)
	cwd, err := os.Stat(proc + "/cwd")
	if err != nil {
		if !alive(pid) {
			return gone
		}
		if os.Geteuid() == 0 {
			return unclear // some kernels hide processes even from root
		}
		return foreign // a server of ours belongs to this user, who may read its links
	}
	if !os.SameFile(cwd, cluster) || !namedPostgres(proc) {
		return foreign
	}
	return server
}

// serversIn lists the PostgreSQL processes that work in the cluster: the postmaster, its
// backends, and backends that outlived a killed postmaster.
func serversIn(cluster os.FileInfo) []int {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var pids []int
	for _, proc := range entries {
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err == nil && namedPostgres(proc) && identify(pid, cluster) == server {
			pids = append(pids, pid)
		}
	}
	return pids
}

// namedPostgres checks the command's name, because the server's process titles change the
// argument list but not the name.
func namedPostgres(proc string) bool {
	comm, err := os.ReadFile(proc + "/comm")
	name := string(bytes.TrimSpace(comm))
	return err == nil && (name == "postgres" || name == "postmaster")
}

// alive reports whether pid is a process that has not ended. A zombie counts as ended; in
// a container without init it stays visible for ever.
func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// "pid (name) state …"; the name may itself hold parentheses.
	_, rest, ok := strings.Cut(string(stat[max(bytes.LastIndexByte(stat, ')'), 0):]), " ")
	return ok && rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

// dieWithParent makes a program be killed when takt is. It is only for programs whose work is
// then of no use, never for the server.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// newLogPipe makes the server's standard error a named pipe. The server outlives a killed
// takt, and the next takt can open the same pipe again. While no process reads, the
// server's writes fail and the server goes on.
func newLogPipe(path string, log zerolog.Logger) (*logPipe, *os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("making the database server's log pipe: %w", err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		// The file system has no named pipes, so the log ends when takt ends.
		log.Debug().Err(err).Msg("no named pipe for the database server's log")
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, fmt.Errorf("making the database server's log pipe: %w", err)
		}
		return newPipe(r, log), w, nil
	}
	reader, err := reopenLogPipe(path, log)
	if err != nil {
		return nil, nil, err
	}
	writer, err := os.OpenFile(path, os.O_WRONLY, 0) // does not block: there is a reader
	if err != nil {
		reader.close()
		return nil, nil, fmt.Errorf("opening the database server's log pipe: %w", err)
	}
	return reader, writer, nil
}

// reopenLogPipe opens the log of a server that already has the pipe open. If the server
// has no such pipe, there is no log.
func reopenLogPipe(path string, log zerolog.Logger) (*logPipe, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the database server's log pipe: %w", err)
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		_ = file.Close()
		return nil, fmt.Errorf("%s is not a pipe: %w", path, errors.Join(err, fs.ErrInvalid))
	}
	return newPipe(file, log), nil
}
