package database

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// logPipe copies the server's log into takt's, line by line.
type logPipe struct {
	file *os.File
	log  zerolog.Logger
	done chan struct{} // closed by read at the end of the log

	mu   sync.Mutex
	tail []string // the last important lines, for the error of a failed start
}

func newPipe(file *os.File, log zerolog.Logger) *logPipe {
	return &logPipe{file: file, log: log.With().Str("from", "postgres").Logger(), done: make(chan struct{})}
}

// logPath returns the path of the named pipe for the server's standard error. It is beside the
// cluster and not in it, because the cluster belongs to PostgreSQL.
func (cl *cluster) logPath() string { return filepath.Join(filepath.Dir(cl.dir), "postgres.stderr") }

// read copies until the last writer (the server and its backends) has ended or the pipe
// is closed.
func (l *logPipe) read() {
	defer close(l.done)
	lines := bufio.NewReaderSize(l.file, 4096)
	level := zerolog.InfoLevel
	for begins := true; ; {
		// A line longer than the buffer is read in parts, so that no text is lost and no
		// memory grows.
		line, err := lines.ReadSlice('\n')
		if text := strings.TrimRight(string(line), "\r\n"); text != "" {
			level = l.write(text, level, begins)
		}
		begins = err == nil
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				l.log.Warn().Err(err).Msg("the database server's log is lost")
			}
			return
		}
	}
}

// write logs one line with the server's severity. A line without a severity continues the
// line before and gets its level. The same holds for a part that does not begin a line,
// whatever its text.
func (l *logPipe) write(text string, before zerolog.Level, begins bool) zerolog.Level {
	severity, message, found := strings.Cut(text, ":  ")
	level, known := severityLevel(severity, message)
	if !begins || !found || !known {
		level, message = before, strings.TrimSpace(text)
	}
	if level >= zerolog.ErrorLevel {
		l.mu.Lock()
		l.tail = append(l.tail, text)
		l.tail = l.tail[max(0, len(l.tail)-3):]
		l.mu.Unlock()
	}
	l.log.WithLevel(level).Msg(message)
	return level
}

// severityLevel returns the level for a severity of PostgreSQL, and false if it is none. LOG
// becomes debug, because PostgreSQL logs every start and stop with it, but slow statements,
// long lock waits, crashes and recoveries become warnings.
func severityLevel(severity, message string) (zerolog.Level, bool) {
	if severity == "LOG" {
		for _, notable := range []string{"duration: ", "process ", "server process ", "database system was not properly", "database system was interrupted"} {
			if strings.HasPrefix(message, notable) {
				return zerolog.WarnLevel, true
			}
		}
	}
	switch severity {
	case "FATAL", "PANIC", "ERROR":
		switch message {
		case "terminating connection due to administrator command", "the database system is shutting down":
			return zerolog.InfoLevel, true // each open connection logs this when the server stops
		case "connection to client lost", "canceling statement due to user request", "canceling authentication due to timeout":
			// takt has given up a statement or a login, and logs why itself. The last one is
			// also logged for a login that the stop of the server interrupts.
			return zerolog.InfoLevel, true
		}
		return zerolog.ErrorLevel, true
	case "WARNING":
		return zerolog.WarnLevel, true
	case "NOTICE", "INFO", "LOG", "DEBUG", "DETAIL", "HINT", "CONTEXT", "STATEMENT", "LOCATION", "QUERY":
		return zerolog.DebugLevel, true
	default:
		return zerolog.NoLevel, false
	}
}

// lastWords returns the last important lines of the server's log.
func (l *logPipe) lastWords() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.tail, " · ")
}

// drain waits at most d for the end of the log.
func (l *logPipe) drain(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	}
}

func (l *logPipe) close() { _ = l.file.Close() }
