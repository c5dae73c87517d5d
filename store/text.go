package store

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text makes text from outside acceptable to PostgreSQL and JSON, which allow neither
// NUL nor invalid UTF-8. It keeps everything else.
func Text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// maxErrorText is the longest error text that is kept, in bytes.
const maxErrorText = 8 << 10

// ErrorText is Text for an error message. It keeps only the beginning.
func ErrorText(s string) string { return Clip(s, maxErrorText) }

// Clip is Text of at most limit bytes. It marks the cut.
func Clip(s string, limit int) string {
	const cut = " …"
	if s = Text(s); len(s) > limit {
		s = strings.ToValidUTF8(s[:limit-len(cut)], "") + cut
	}
	return s
}

// maxWord is the longest word, in characters.
const maxWord = 100

// word makes a word from outside safe for a line of a log.
func word(s string) string {
	s = OneLine(s)
	if utf8.RuneCountInString(s) > maxWord {
		s = string([]rune(s)[:maxWord])
	}
	return s
}

// OneLine is Text with each run of white space as one space.
func OneLine(s string) string { return strings.Join(strings.Fields(Text(s)), " ") }

// Absent reports whether a member of a JSON object is not there, or null.
func Absent(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }

// ParsePriority reads a build's priority; "" is 0. Its error is InvalidArgument and
// may be shown.
func ParsePriority(v string) (int, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < MinPriority || n > MaxPriority {
		return 0, NewError(InvalidArgument, "priority must be a whole number from -10 to 10")
	}
	return n, nil
}
