package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"takt/http/api"
	"takt/store"
)

// Output is where a command writes: results to Out, everything else to Err, so that
// results can be piped.
type Output struct {
	Out, Err io.Writer
	// JSON writes each result as compact JSON on one line.
	JSON bool
}

// Result shows a result, either as JSON or with text.
func (o Output) Result(value any, text func(w io.Writer)) error {
	if !o.JSON {
		text(o.Out)
		return nil
	}
	return EncodeJSON(o.Out, value)
}

// EncodeJSON writes value on one line. It escapes characters that could control a
// terminal. The value itself does not change.
func EncodeJSON(w io.Writer, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(append(escape(raw), '\n'))
	return err
}

// escape writes the control characters of a JSON text as \uXXXX.
func escape(raw []byte) []byte {
	if bytes.IndexFunc(raw, store.Controls) < 0 {
		return raw
	}
	var out bytes.Buffer
	for _, r := range string(raw) {
		if store.Controls(r) && r != '\n' {
			fmt.Fprintf(&out, "\\u%04x", r) // none is above U+FFFF
		} else {
			out.WriteRune(r)
		}
	}
	return out.Bytes()
}

// JSONLog escapes characters that could control a terminal in a log of JSON lines.
type JSONLog struct{ io.Writer }

func (l JSONLog) Write(p []byte) (int, error) {
	_, err := l.Writer.Write(escape(p))
	return len(p), err
}

// Note writes a text for a person to Err. It writes nothing in JSON mode.
func (o Output) Note(format string, args ...any) {
	if !o.JSON {
		clear := ""
		if Terminal(o.Err) {
			clear = clearLine // removes a bar
		}
		fmt.Fprintf(o.Err, clear+format+"\n", args...)
	}
}

// Terminal reports whether w is a terminal.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// These say how this process shows times and that it shows no colours; see InUTC and
// NoColours.
var utc, colourless atomic.Bool //nolint:gochecknoglobals // said once, by who runs takt

// InUTC makes this process show times in UTC instead of local time.
func InUTC() { utc.Store(true) }

// Time shows a time, or - if there is none.
func Time(t time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case utc.Load():
		return t.UTC().Format(time.RFC3339)
	default:
		return t.Local().Format(time.RFC3339)
	}
}

// TimeText shows a time that is given as text.
func TimeText(s string) string {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return store.Line(s)
	}
	return Time(t)
}

// NoColours sets whether this process shows no colours.
func NoColours(none bool) { colourless.Store(none) }

// Colour reports whether w shows colours: it is a terminal, and NoColours does not forbid them.
func Colour(w io.Writer) bool { return !colourless.Load() && Terminal(w) }

// states matches words that are coloured if they stand alone in a cell.
var states = regexp.MustCompile(`(^|  )(?:(completed|healthy|running|done|idle)|(building|assigned|pending|warning|suspended|restarting)|(failed|critical|terminated|offline|cancelled))(  |\n|$)`)

// Table writes rows in columns. The first row is the heading. A cell's text always stays
// in its cell, whatever it contains.
func Table(w io.Writer, rows [][]string) {
	var text bytes.Buffer
	tw := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = store.Line(cell)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	_ = tw.Flush() // memory writes do not fail
	shown := text.Bytes()
	if Colour(w) {
		shown = states.ReplaceAll(shown, []byte("$1\x1b[32m$2\x1b[33m$3\x1b[31m$4\x1b[0m$5"))
	}
	_, _ = w.Write(shown) // the next write reports a closed pipe
}

// List writes a table with a row for each item.
func List[T any](w io.Writer, heading []string, items []T, row func(T) []string) {
	rows := [][]string{heading}
	for _, item := range items {
		rows = append(rows, row(item))
	}
	Table(w, rows)
}

// LogLine writes an entry of a build's log. It indents all lines but the first, so that
// they can't look like another entry.
func LogLine(w io.Writer, e api.LogEntry) {
	at := e.Timestamp.Time()
	if utc.Load() {
		at = at.UTC()
	}
	level := fmt.Sprintf("%-5s", store.Line(e.Level))
	if Colour(w) {
		level = map[string]string{"warn": "\x1b[33m", "error": "\x1b[31m"}[e.Level] + level + "\x1b[0m"
	}
	message := strings.ReplaceAll(store.Lines(e.Message), "\n", "\n"+strings.Repeat(" ", 19))
	fmt.Fprintf(w, "%s %s %s\n", at.Format("15:04:05.000"), level, message)
}

// Or returns *s, or other if s is nil or empty.
func Or(s *string, other string) string {
	if s == nil || *s == "" {
		return other
	}
	return *s
}
