package database

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

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
