package store

import (
	"strings"
	"unicode"
)

// Line makes text from outside safe for one line on a terminal or in a log. It replaces
// each character that would start another line, control the terminal or change the text
// direction by U+FFFD.
func Line(s string) string { return visible(s, "") }

// Lines is Line for a text of several lines: it keeps their ends, and tabs.
func Lines(s string) string { return visible(s, "\n\t") }

func visible(s, keep string) string {
	return strings.Map(func(r rune) rune {
		if Controls(r) && !strings.ContainsRune(keep, r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// Controls reports whether r is not visible itself but changes how other characters
// look: a control character, a mark of direction, an end of line or paragraph.
func Controls(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}
