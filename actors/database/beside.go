package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Attachment connects to the embedded server that another process runs in a data directory.
// It starts and changes nothing.
type Attachment struct{ cluster *cluster }

// Attach opens the data directory of a running server. It does not check that the server
// answers. The caller closes the result.
func Attach(dataDir string) (*Attachment, error) {
	abs, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, fmt.Errorf("naming the data directory: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(abs, passwordFileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no embedded database", dataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the database password: %w", err)
	}
	cl := &cluster{dir: filepath.Join(abs, clusterName), password: strings.TrimSpace(string(text))}
	if cl.home, err = os.Open(cl.dir); err != nil {
		return nil, fmt.Errorf("opening the database directory: %w", err)
	}
	return &Attachment{cluster: cl}, nil
}

// ConnConfig returns the configuration of connections to the server. It is a Source.
func (b *Attachment) ConnConfig(context.Context) (*pgx.ConnConfig, error) {
	return b.cluster.connConfig(databaseName)
}

// Close closes the directory. Open connections stay open.
func (b *Attachment) Close() { b.cluster.close() }
