package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
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

// Say shows a result, either as JSON or as a text that ends with its line.
func (o Output) Say(value any, format string, args ...any) error {
	return o.Result(value, func(w io.Writer) { fmt.Fprintf(w, format+"\n", args...) })
}

// millis is a member that is a time in milliseconds since 1970, as several replies of the API
// have them. A quote within a text follows a backslash.
var millis = regexp.MustCompile(`([{,]"(?:[a-z]+_at|timestamp)":)(\d{13})\b`)

// EncodeJSON writes value on one line, with times as in RFC 3339. It escapes characters that
// could control a terminal, which does not change the value.
func EncodeJSON(w io.Writer, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	raw = millis.ReplaceAllFunc(raw, func(member []byte) []byte {
		at := len(member) - len("1234567890123")
		ms, _ := strconv.ParseInt(string(member[at:]), 10, 64) // digits only
		return append(member[:at:at], time.UnixMilli(ms).UTC().Format(`"2006-01-02T15:04:05.000Z"`)...)
	})
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

// Confirm asks before an action that can't be undone. It asks only at a terminal, and
// returns an error for any answer but y or yes.
func (o Output) Confirm(in io.Reader, question string) error {
	if f, ok := in.(*os.File); !ok || o.JSON || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	fmt.Fprintf(o.Err, "%s [y/N] ", store.Line(question))
	answer, _ := bufio.NewReader(in).ReadString('\n') // no answer is no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was changed")
}

// Terminal reports whether w is a terminal.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Display options of this process; see InUTC and NoColours.
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

// Since shows how long ago a time is that is given as text.
func Since(s string) string {
	if d, ok := Elapsed(s); ok {
		return Age(d)
	}
	return "-"
}

// NoColours sets whether this process shows no colours.
func NoColours(none bool) { colourless.Store(none) }

// Colour reports whether w shows colours: it is a terminal, and NoColours does not forbid them.
func Colour(w io.Writer) bool { return !colourless.Load() && Terminal(w) }

// states matches words that are coloured if they stand alone in a cell.
var states = regexp.MustCompile(`(^|  )(?:(completed|healthy|running|done|idle)|(building|assigned|pending|warning|suspended|restarting)|(failed|critical|suspect|terminated|offline|cancelled))(  |\n|$)`)

// Table writes rows in columns. The first row is the heading. A cell's text always stays
// in its cell, whatever it contains. On a terminal a line that is too long ends in "…".
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
	if Terminal(w) {
		lines := strings.SplitAfter(text.String(), "\n")
		for i, line := range lines {
			lines[i] = fit(w, strings.TrimSuffix(line, "\n")) + line[len(strings.TrimSuffix(line, "\n")):]
		}
		shown = []byte(strings.Join(lines, ""))
	}
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

// LogStyle is how lines of a build's log are shown: as they are (Raw), or each with its time
// of day, or with its date and time (Timestamps), and its level unless that is info.
type LogStyle struct{ Raw, Timestamps bool }

// sequence matches an escape sequence: one that sets colours is its first group.
var sequence = regexp.MustCompile(`(\x1b\[[0-9;:]*m)|\x1b(?:\[[0-?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?`)

// Line writes an entry of a build's log. It indents all lines but the first, so that they
// can't look like another entry. Colours of the entry are kept where w shows them, and no
// other escape sequence is.
func (s LogStyle) Line(w io.Writer, e api.LogEntry) {
	e.Message += store.ByWhy(e.By, e.Why)
	colour := Colour(w)
	var text strings.Builder
	at, coloured := 0, false
	for _, m := range sequence.FindAllStringSubmatchIndex(e.Message, -1) {
		text.WriteString(store.Lines(e.Message[at:m[0]]))
		if at = m[1]; m[2] >= 0 && colour {
			text.WriteString(e.Message[m[2]:m[3]])
			coloured = true
		}
	}
	text.WriteString(store.Lines(e.Message[at:]))
	if coloured {
		text.WriteString("\x1b[0m")
	}
	if s.Raw {
		fmt.Fprintln(w, text.String())
		return
	}
	start := e.Timestamp.Time().Local()
	if utc.Load() {
		start = start.UTC()
	}
	prefix := start.Format(time.TimeOnly)
	if s.Timestamps {
		prefix = start.Format("2006-01-02T15:04:05.000Z07:00")
	}
	indent := "\n" + strings.Repeat(" ", len(prefix)+1)
	if level := store.Line(e.Level); level != "info" {
		if colour {
			level = map[string]string{"warn": "\x1b[33m", "error": "\x1b[31m"}[e.Level] + level + "\x1b[0m"
		}
		prefix += " " + level + ":"
	}
	fmt.Fprintln(w, prefix, strings.ReplaceAll(text.String(), "\n", indent))
}

// Or returns *s, or other if s is nil or empty.
func Or(s *string, other string) string {
	if s == nil || *s == "" {
		return other
	}
	return *s
}
