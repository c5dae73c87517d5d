package database

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// movedName is the file in a cluster that says where its database was moved.
const movedName = "takt.moved"

// MarkMoved records that the embedded database of a data directory was moved, or is being moved,
// to another server. takt then refuses to run it.
func MarkMoved(dataDir, to string) error {
	root, err := os.OpenRoot(filepath.Join(dataDir, clusterName))
	if err == nil {
		defer root.Close()
		err = writeFile(root, movedName, to+"\n", nil)
	}
	if err != nil {
		return fmt.Errorf("marking the database as moved: %w", err)
	}
	return nil
}

// MovedTo returns the argument to of MarkMoved, "" if that was not called.
func MovedTo(dataDir string) (string, error) {
	to, err := os.ReadFile(filepath.Join(dataDir, clusterName, movedName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(to)), err
}

// refuseMoved returns an error if the cluster of a data directory was moved.
func refuseMoved(dataDir string) error {
	to, err := MovedTo(dataDir)
	if err != nil || to == "" {
		return err
	}
	return fmt.Errorf("this database was moved to %s: set TAKT_DATABASE_URL, and TAKT_ENCRYPTION_KEY to the content of encryption-key in the data directory; "+
		"if the move was interrupted, run takt database move again; to go on with the old database, remove %s",
		to, filepath.Join(dataDir, clusterName, movedName))
}
