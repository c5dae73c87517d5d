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

// Beside connects to the embedded server that another process runs in a data directory.
// It starts and changes nothing.
type Beside struct{ cluster *cluster }

// OpenBeside opens the data directory of a running server. It does not check that the
// server answers; the first connection shows that. The caller closes it.
func OpenBeside(dataDir string) (*Beside, error) {
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
	return &Beside{cluster: cl}, nil
}

// ConnConfig returns how to reach the server. It is a Source.
func (b *Beside) ConnConfig(context.Context) (*pgx.ConnConfig, error) {
	return b.cluster.connConfig(databaseName)
}

// Close closes the directory. Open connections stay.
func (b *Beside) Close() { b.cluster.close() }
