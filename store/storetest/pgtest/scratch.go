package pgtest

import (
	"os"
	"os/exec"
	"syscall"
)

// Scratch is a directory for clusters that nobody needs tomorrow: in memory if there is room
// for many, because PostgreSQL makes and removes hundreds of files for each database. Its
// path is short, as those of sockets must be.
func Scratch() string {
	const memory, pages, writable = "/dev/shm", 2 << 30 / 4096, 2
	var fs syscall.Statfs_t
	if syscall.Statfs(memory, &fs) == nil && fs.Bavail >= pages && syscall.Access(memory, writable) == nil {
		return memory
	}
	return Disk()
}

// Disk is a directory whose path is short: that for temporary files, or else /tmp.
func Disk() string {
	if dir := os.TempDir(); len(dir) < 60 {
		return dir
	}
	return "/tmp"
}

// ScratchDir makes a directory in Scratch. It is removed by remove, or when this process has
// ended, however it did. Others than its owner can only pass through.
func ScratchDir() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp(Scratch(), "takt-test-"); err != nil {
		return "", nil, err
	}
	if err = os.Chmod(dir, 0o711); err != nil { //nolint:gosec // a server may have another account
		return "", nil, err
	}
	cmd := exec.Command("/bin/sh", "-c", `read -r line; rm -rf "$1"`, "sh", dir) // it ends with its input
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                        // an interrupt at the terminal does not reach it
	life, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, err
	}
	return dir, func() { _, _ = life.Close(), cmd.Wait() }, nil
}
