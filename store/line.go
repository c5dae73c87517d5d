package store

import (
	"strings"
	"unicode"
)

// Line makes a stranger's text fit for one line on a terminal or in a log: what
// would begin another line, control the terminal or turn the order of the
// letters becomes U+FFFD.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		if Controls(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// Controls reports whether r is not a character to be seen but changes how others are:
// a control character, a mark of direction, an end of line or paragraph.
func Controls(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}
