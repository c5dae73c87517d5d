package database

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// passwordFileName is the file in the data directory with the password of the embedded
// server. Only takt's own account can read it.
const passwordFileName = "postgres.password"

// loadPassword reads the password, and makes one if there is none. The password is synced
// to the disk before a cluster is made with it.
func loadPassword(data *os.Root) (password string, made bool, err error) {
	text, err := data.ReadFile(passwordFileName)
	if err == nil {
		if password = strings.TrimSpace(string(text)); password != "" {
			return password, false, data.Chmod(passwordFileName, 0o600)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("reading the database password: %w", err)
	}
	password = rand.Text()
	if err := writeFile(data, passwordFileName, password+"\n", nil); err != nil {
		return "", false, fmt.Errorf("saving the database password: %w", err)
	}
	return password, true, nil
}

// writeFile replaces a file of root atomically: readers see the old text or the new one,
// also after a crash. The file is private. It gets the owner to, unless that is nil.
func writeFile(root *os.Root, name, text string, to *owner) error {
	draft := name + ".new"
	if err := root.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// O_EXCL: a file or link that another account made under this name is not followed.
	file, err := root.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if to != nil && to.drop {
		if err := file.Chown(int(to.uid), int(to.gid)); err != nil {
			return err
		}
	}
	if _, err := file.WriteString(text); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := root.Rename(draft, name); err != nil {
		return err
	}
	return syncDir(root)
}

// syncDir makes root's directory entries durable.
func syncDir(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
