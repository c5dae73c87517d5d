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

// identify tells whether process pid is a server of the cluster. A server's
// working directory is its cluster, whatever the path it was given, so the
// comparison is by device and inode: the recorded path may be /proc/self/fd/3.
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
			return unclear // a kernel that hides processes even from root
		}
		return stranger // a server of ours would be this user's, who may look
	}
	if !os.SameFile(cwd, cluster) || !namedPostgres(proc) {
		return stranger
	}
	return server
}

// serversIn lists the PostgreSQL processes that work in the cluster: the
// postmaster, its backends, and those that outlived a killed postmaster.
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

// namedPostgres looks at the command's name, which, unlike the argument list,
// the server's process titles do not change.
func namedPostgres(proc string) bool {
	comm, err := os.ReadFile(proc + "/comm")
	name := string(bytes.TrimSpace(comm))
	return err == nil && (name == "postgres" || name == "postmaster")
}

// alive reports whether pid is a process that has not ended. One that nobody
// collects (a container without init) stays visible for ever as a zombie.
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

// dieWithParent makes a helper program end when takt is killed. It is for
// programs whose work is thrown away then, never for the server.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// newLogPipe makes the server's standard error a named pipe, because a server
// outlives a killed takt and the next takt can open the same pipe again. While
// nobody reads, the server's writes fail and it goes on.
func newLogPipe(path string, log zerolog.Logger) (*logPipe, *os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("making the database server's log pipe: %w", err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		// A file system without named pipes: the log just ends with takt.
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

// reopenLogPipe reads the log of a server that has the pipe open already. If
// it has not, the log just ends.
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
