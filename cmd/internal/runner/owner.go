package runner

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Owner is the user that builds' commands run as.
type Owner struct {
	Name, Home string
	Credential *syscall.Credential
}

// FindOwner looks a user up, by name or number.
func FindOwner(name string) (*Owner, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("no user %q", name)
		}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	switch {
	case err1 != nil || err2 != nil:
		return nil, fmt.Errorf("user %q has no numbers", name)
	case uid == 0:
		return nil, fmt.Errorf("user %q is root", name)
	case os.Geteuid() != 0:
		return nil, fmt.Errorf("only root can run commands as user %q", name)
	}
	return &Owner{u.Username, u.HomeDir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// open lets the owner through the directories above builds.
func (o *Owner) open(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // others may pass, not look
			return err
		}
	}
	return nil
}

// give makes everything below dirs the owner's.
func (o *Owner) give(dirs ...string) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, int(o.Credential.Uid), int(o.Credential.Gid)) //nolint:gosec // nothing of the build runs yet
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// take makes a directory the worker's again: whoever ran there can't change it any
// more.
func (o *Owner) take(dir string) error {
	if err := os.Lchown(dir, os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700) //nolint:gosec // a directory
}
