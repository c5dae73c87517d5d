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

// logPipe carries the server's log into takt's, line by line.
type logPipe struct {
	file *os.File
	log  zerolog.Logger
	done chan struct{} // closed by read at the end of the log

	mu   sync.Mutex
	tail []string // the last lines of weight, for the error of a failed start
}

func newPipe(file *os.File, log zerolog.Logger) *logPipe {
	return &logPipe{file: file, log: log.With().Str("from", "postgres").Logger(), done: make(chan struct{})}
}

// logPath is where the server's standard error goes: beside the cluster, as
// its contents are takt's.
func (cl *cluster) logPath() string { return filepath.Join(filepath.Dir(cl.dir), "postgres.stderr") }

// read copies until the last writer (the server and its backends) is gone or
// the pipe is closed.
func (l *logPipe) read() {
	defer close(l.done)
	lines := bufio.NewReaderSize(l.file, 4096)
	level := zerolog.InfoLevel
	for begins := true; ; {
		// A line beyond the buffer comes in pieces; nothing is lost or grows.
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

// write passes one line on with the server's severity. A line without one
// continues the line before, and so has its level; so does a piece that does not
// begin a line, whatever it says.
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

// severityLevel translates PostgreSQL's words. Its LOG tells of every start
// and stop, so it is no louder than debug here, but for slow statements, long
// waits for locks, crashes and recoveries.
func severityLevel(severity, message string) (zerolog.Level, bool) {
	if severity == "LOG" {
		for _, notable := range []string{"duration: ", "process ", "server process ", "database system was not properly", "database system was interrupted"} {
			if strings.HasPrefix(message, notable) {
				return zerolog.WarnLevel, true
			}
		}
	}
	switch severity {
	case "FATAL":
		// Every connection that is open when the server is stopped says so.
		if message == "terminating connection due to administrator command" || message == "the database system is shutting down" {
			return zerolog.InfoLevel, true
		}
		return zerolog.ErrorLevel, true
	case "PANIC", "ERROR":
		return zerolog.ErrorLevel, true
	case "WARNING":
		return zerolog.WarnLevel, true
	case "NOTICE", "INFO", "LOG", "DEBUG", "DETAIL", "HINT", "CONTEXT", "STATEMENT", "LOCATION", "QUERY":
		return zerolog.DebugLevel, true
	default:
		return zerolog.NoLevel, false
	}
}

// lastWords returns the last complaints of the server.
func (l *logPipe) lastWords() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.tail, " · ")
}

// drain waits for the end of the log, at most d.
func (l *logPipe) drain(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	}
}

func (l *logPipe) close() { _ = l.file.Close() }
