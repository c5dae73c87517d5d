package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"takt/http/api"
)

// Output is where a command speaks: results on Out, everything else on Err, so
// that results can be piped.
type Output struct {
	Out, Err io.Writer
	// JSON makes results one compact JSON value per line.
	JSON bool
}

// Result shows a result: as JSON, or by text.
func (o Output) Result(value any, text func(w io.Writer)) error {
	if !o.JSON {
		text(o.Out)
		return nil
	}
	return json.NewEncoder(o.Out).Encode(value)
}

// Note writes something for a person to Err, nothing in JSON mode.
func (o Output) Note(format string, args ...any) {
	if !o.JSON {
		fmt.Fprintf(o.Err, format+"\n", args...)
	}
}

// Terminal reports whether w is a terminal.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Table writes rows in columns. The first row is the heading.
func Table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	_ = tw.Flush() // a closed pipe shows at the next write
}

// List writes a table with a row for each item.
func List[T any](w io.Writer, heading []string, items []T, row func(T) []string) {
	rows := [][]string{heading}
	for _, item := range items {
		rows = append(rows, row(item))
	}
	Table(w, rows)
}

// Plain removes what would control a terminal: build logs and error messages
// are written by strangers.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}

// LogLine writes a line of a build's log.
func LogLine(w io.Writer, e api.LogEntry) {
	fmt.Fprintf(w, "%s %-5s %s\n", e.Timestamp.Time().Format("15:04:05.000"), e.Level, Plain(e.Message))
}

// Or is *s, or other if s is nil or empty.
func Or(s *string, other string) string {
	if s == nil || *s == "" {
		return other
	}
	return *s
}
