//go:build unix && !linux

package database

import (
	"errors"
	"fmt"
	"os"

	"github.com/rs/zerolog"
)

// newLogPipe makes the server's standard error a plain pipe: here a closed
// named pipe does not wake its reader.
func newLogPipe(_ string, log zerolog.Logger) (*logPipe, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("making the database server's log pipe: %w", err)
	}
	return newPipe(r, log), w, nil
}

// reopenLogPipe fails: an adopted server's pipe died with the takt that made it.
func reopenLogPipe(string, zerolog.Logger) (*logPipe, error) {
	return nil, errors.ErrUnsupported
}
