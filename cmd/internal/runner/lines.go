package runner

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"takt/cmd/internal/mask"
	"takt/store"
)

// lineWriter splits output into lines. A line over the limit is truncated, with a note of
// how much is missing, so memory stays bounded whatever a command writes.
type lineWriter struct {
	limit int
	emit  func(line string)
	// masked masks the output before it is cut; nil for none.
	masked *mask.Stream

	mu    sync.Mutex // output may still come while the writer is closed
	line  []byte
	over  int         // bytes of this line that were not kept
	pause *time.Timer // see await; nil before the first
}

// maxPause is how long a line that could be the beginning of a secret of several lines waits for
// the next one.
const maxPause = time.Second

// Write implements io.Writer and never fails.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.split(l.masked.Feed(p))
	l.await()
	return len(p), nil
}

func (l *lineWriter) split(p []byte) {
	for {
		at := bytes.IndexByte(p, '\n')
		if at < 0 {
			l.keep(p)
			return
		}
		l.keep(p[:at])
		l.finish()
		p = p[at+1:]
	}
}

// await emits lines that the mask keeps if no more output comes.
func (l *lineWriter) await() {
	switch {
	case !l.masked.HoldsLine():
		if l.pause != nil {
			l.pause.Stop()
		}
	case l.pause != nil:
		l.pause.Reset(maxPause)
	default:
		l.pause = time.AfterFunc(maxPause, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.split(l.masked.FlushLines())
		})
	}
}

// close emits a last line that has no end.
func (l *lineWriter) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pause != nil {
		l.pause.Stop()
	}
	l.split(l.masked.Flush())
	if len(l.line) > 0 || l.over > 0 {
		l.finish()
	}
}

func (l *lineWriter) keep(p []byte) {
	room := min(l.limit-len(l.line), len(p))
	l.line = append(l.line, p[:room]...)
	l.over += len(p) - room
}

func (l *lineWriter) finish() {
	text := l.line
	if l.over > 0 {
		for range utf8.UTFMax - 1 { // not in the middle of a character
			if r, size := utf8.DecodeLastRune(text); r != utf8.RuneError || size != 1 {
				break
			}
			text, l.over = text[:len(text)-1], l.over+1
		}
	}
	line := store.Text(strings.TrimSuffix(string(text), "\r"))
	if l.over > 0 {
		line += fmt.Sprintf(" … [%d bytes cut]", l.over)
	}
	l.line, l.over = l.line[:0], 0
	l.emit(line)
}

// tail forwards output and remembers its last lines.
type tail struct {
	*lineWriter
	mu   sync.Mutex
	last []string
}

const (
	tailLines = 10
	tailBytes = 2000
)

// newTail puts a tail before w.
func newTail(w *lineWriter) *tail {
	t := &tail{lineWriter: w}
	emit := w.emit
	w.emit = func(line string) {
		t.mu.Lock()
		t.last = append(t.last, line)
		if len(t.last) > tailLines {
			t.last = t.last[1:]
		}
		t.mu.Unlock()
		emit(line)
	}
	return t
}

// quote is the last lines for an error message, "" if there were none.
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(strings.Join(t.last, "\n"))
	if text == "" {
		return ""
	}
	if cut := len(text) - tailBytes; cut > 0 {
		text = "…" + strings.ToValidUTF8(text[cut:], "")
	}
	return "\n" + text
}
