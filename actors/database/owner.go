package database

import (
	"fmt"
	"os/user"
	"strconv"
	"syscall"
)

// owner is the account that the server runs as.
type owner struct {
	uid, gid uint32
	drop     bool // takt runs as root and must change to this account
}

// credential returns the credential with which a child runs as the owner, without supplementary
// groups; nil if takt runs as the owner already.
func (o owner) credential() *syscall.Credential {
	if !o.drop {
		return nil
	}
	return &syscall.Credential{Uid: o.uid, Gid: o.gid}
}

// chooseOwner returns the account for the server. PostgreSQL refuses to run as root, and refuses
// a directory of another account. If takt runs as root, the account is the owner of an existing
// cluster, or "postgres" (or else "nobody") for a new one.
func chooseOwner(euid, egid int, existing *owner, lookup func(string) (*user.User, error)) (owner, error) {
	if euid != 0 {
		if existing != nil && existing.uid != uint32(euid) {
			return owner{}, fmt.Errorf("the database directory belongs to user id %d, and takt runs as %d", existing.uid, euid)
		}
		return owner{uid: uint32(euid), gid: uint32(egid)}, nil
	}
	if existing != nil && existing.uid != 0 {
		return owner{uid: existing.uid, gid: existing.gid, drop: true}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(account.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(account.Gid, 10, 32)
		if err1 == nil && err2 == nil && uid != 0 {
			return owner{uid: uint32(uid), gid: uint32(gid), drop: true}, nil
		}
	}
	return owner{}, fmt.Errorf("takt runs as root, PostgreSQL refuses to, and this machine has neither a user postgres nor nobody: run takt as another user")
}
