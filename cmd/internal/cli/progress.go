package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"takt/http/client"
)

// clearLine clears the line that shows a bar.
const clearLine = "\r\x1b[K"

// redrawEvery is the minimum time between two drawings of a bar.
const redrawEvery = 100 * time.Millisecond

// Bar shows the progress of something on one line of a terminal.
type Bar struct {
	w     io.Writer
	count bool // counts things instead of bytes

	mu     sync.Mutex
	label  string
	begun  time.Time
	first  int64 // what was already done at the start
	last   int64
	drawn  time.Time
	filled bool
}

// NewBar returns a bar for w. The bar shows nothing if w is no terminal or quiet is set.
func NewBar(w io.Writer, label string, quiet bool) *Bar {
	if quiet || !Terminal(w) {
		w = nil
	}
	return &Bar{w: w, label: label}
}

// NewCountBar is like NewBar, but counts things instead of bytes.
func NewCountBar(w io.Writer, label string, quiet bool) *Bar {
	b := NewBar(w, label, quiet)
	b.count = true
	return b
}

// Show sets the progress and the label.
func (b *Bar) Show(done, total int64, label string) {
	if b.w == nil || total == 0 {
		return
	}
	b.mu.Lock()
	b.label = label
	b.mu.Unlock()
	b.set(done, total)
}

// Progress returns a function that a transfer calls with its progress.
func (b *Bar) Progress() client.Progress {
	if b.w == nil {
		return nil
	}
	return b.set
}

func (b *Bar) set(done, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.begun.IsZero() || done < b.last { // a retry starts again
		b.begun, b.first = now, done
	}
	b.last = done
	if now.Sub(b.drawn) < redrawEvery {
		return
	}
	b.drawn, b.filled = now, true
	fmt.Fprint(b.w, clearLine+fit(b.w, b.line(done, total, now.Sub(b.begun))))
}

// line returns the text of the bar. The speed counts only what was moved since the bar
// began. It is left out in the first half second.
func (b *Bar) line(done, total int64, took time.Duration) string {
	size := func(n int64) string { return humanize.Bytes(uint64(n)) }
	if b.count {
		size = func(n int64) string { return fmt.Sprint(n) }
	}
	parts := []string{b.label}
	if total > 0 {
		const cells = 20
		full := int(min(done, total) * cells / total)
		parts = append(parts, fmt.Sprintf("%3d%% [%s%s]", min(done, total)*100/total, strings.Repeat("=", full), strings.Repeat(" ", cells-full)),
			size(done)+" of "+size(total))
	} else {
		parts = append(parts, size(done))
	}
	if moved := done - b.first; !b.count && took >= 500*time.Millisecond && moved > 0 {
		speed := float64(moved) / took.Seconds()
		parts = append(parts, humanize.Bytes(uint64(speed))+"/s")
		if total > done {
			parts = append(parts, time.Duration(float64(total-done)/speed*float64(time.Second)).Round(time.Second).String()+" left")
		}
	}
	return strings.Join(parts, "  ")
}

// Done removes the bar from the terminal.
func (b *Bar) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.filled {
		fmt.Fprint(b.w, clearLine)
		b.filled = false
	}
}

// Status replaces the bottom line of a terminal. It does nothing if Err is no terminal.
func (o Output) Status(text string) {
	if !o.JSON && Terminal(o.Err) {
		fmt.Fprint(o.Err, clearLine+fit(o.Err, text))
	}
}

// fit cuts a line to the width of the terminal.
func fit(w io.Writer, s string) string {
	width := 80
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			width = n
		}
	}
	if r := []rune(s); len(r) >= width {
		return string(r[:width-2]) + "…"
	}
	return s
}
