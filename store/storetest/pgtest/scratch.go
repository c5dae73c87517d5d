package pgtest

import "syscall"

// Scratch is a directory for clusters that nobody needs tomorrow: in memory if there is room
// for many, because PostgreSQL makes and removes hundreds of files for each database. Its
// path is short, as those of sockets must be.
func Scratch() string {
	const memory, room = "/dev/shm", 2 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < room || syscall.Access(memory, 2) != nil { //nolint:gosec,unconvert // sizes are positive, and of other types on other systems
		return "/tmp"
	}
	return memory
}
