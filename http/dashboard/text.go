package dashboard

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
)

// plain makes untrusted text safe to read beside our own. It shows characters that
// are invisible, or that change how others are read, by their code. The templates
// escape HTML.
func plain(s string) string {
	if !strings.ContainsFunc(s, odd) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\t' || r == '\n':
			b.WriteByte(' ')
		case r < ' ' || r == 0x7f: // shown as its picture, such as ␛, which is no longer than 3 bytes
			b.WriteRune(picture(r))
		case odd(r):
			fmt.Fprintf(&b, "‹U+%04X›", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// picture returns the control picture of an ASCII control character.
func picture(r rune) rune {
	if r == 0x7f {
		return '␡'
	}
	return '␀' + r
}

// odd reports whether r is a control character, is invisible, or changes the
// direction of text.
func odd(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError
}

// clip shortens s to about n characters.
func clip(n int, s string) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	i := 0
	for at := range s {
		if i++; i > n {
			return s[:at] + "…"
		}
	}
	return s
}

// maxLine is the most bytes of a log line that a page shows.
const maxLine = 4000

// ansi shows a log line with the colours of its escape sequences, as classes a1, a30
// … a37, a90 … a97. It drops all other sequences.
func ansi(s string) template.HTML {
	if len(s) > maxLine {
		s = s[:maxLine] + "…"
	}
	if !strings.Contains(s, "\x1b") {
		return template.HTML(template.HTMLEscapeString(plainKeep(s))) //nolint:gosec // escaped
	}
	var b strings.Builder
	bold, colour, open := false, 0, false
	for s != "" {
		at := strings.IndexByte(s, 0x1b)
		if at < 0 {
			at = len(s)
		}
		if at > 0 {
			if open = bold || colour != 0; open {
				b.WriteString(`<span class="`)
				if bold {
					b.WriteString("a1 ")
				}
				if colour != 0 {
					b.WriteString("a" + strconv.Itoa(colour))
				}
				b.WriteString(`">`)
			}
			template.HTMLEscape(&b, []byte(plainKeep(s[:at])))
			if open {
				b.WriteString("</span>")
			}
		}
		var codes string
		codes, s = escapeSequence(s[at:])
		bold, colour = restyle(codes, bold, colour)
	}
	return template.HTML(b.String()) //nolint:gosec // escaped piece by piece
}

// plainKeep is plain, but keeps tabs.
func plainKeep(s string) string {
	parts := strings.Split(s, "\t")
	for i := range parts {
		parts[i] = plain(parts[i])
	}
	return strings.Join(parts, "\t")
}

// escapeSequence removes an escape sequence from the start of s. It returns the codes
// if the sequence sets colours.
func escapeSequence(s string) (codes, rest string) {
	if len(s) < 2 {
		return "", ""
	}
	switch s[1] {
	case '[': // CSI: up to its final byte
		for i := 2; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				if s[i] == 'm' {
					codes = "m" + s[2:i]
				}
				return codes, s[i+1:]
			}
		}
		return "", ""
	case ']', 'P', '^', '_', 'X': // strings: up to BEL or ST
		for i := 2; i < len(s); i++ {
			if s[i] == 7 {
				return "", s[i+1:]
			}
			if s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\' {
				return "", s[i+2:]
			}
		}
		return "", ""
	default:
		_, n := utf8.DecodeRuneInString(s[1:])
		return "", s[1+n:]
	}
}

func restyle(codes string, bold bool, colour int) (bool, int) {
	list, ok := strings.CutPrefix(codes, "m")
	if !ok {
		return bold, colour
	}
	for code := range strings.SplitSeq(list, ";") {
		switch n, err := strconv.Atoi(code); {
		case code == "" || n == 0 && err == nil:
			bold, colour = false, 0
		case n == 1:
			bold = true
		case n == 22:
			bold = false
		case n == 39:
			colour = 0
		case n >= 30 && n <= 37 || n >= 90 && n <= 97:
			colour = n
		case n == 38 || n == 48: // the parameters of an extended colour follow; these are not supported
			return bold, colour
		}
	}
	return bold, colour
}

// span formats a duration.
func span(d time.Duration) string {
	switch d = d.Abs(); {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return twoUnits(int(d.Minutes()), "min", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return twoUnits(int(d.Hours()), "h", int(d.Minutes())%60, "min")
	default:
		return twoUnits(int(d.Hours())/24, "d", int(d.Hours())%24, "h")
	}
}

func twoUnits(a int, unit string, b int, small string) string {
	if b == 0 {
		return strconv.Itoa(a) + " " + unit
	}
	return strconv.Itoa(a) + " " + unit + " " + strconv.Itoa(b) + " " + small
}

// rough is span for estimates. It has fewer digits, so that it changes less often.
func rough(d time.Duration) string {
	switch d = d.Abs(); {
	case d < 10*time.Second:
		return "a few seconds"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())/10*10) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h"
	default:
		return strconv.Itoa(int(d.Hours())/24) + " d"
	}
}

// ago shows how long ago t was, with t itself as the title.
func ago(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	said := rough(time.Since(t)) + " ago"
	switch until := time.Until(t); {
	case until > 0:
		said = "in " + rough(until)
	case until > -10*time.Second:
		said = "just now"
	}
	stamp := t.UTC().Format(time.RFC3339)
	return template.HTML(`<time datetime="` + stamp + `" title="` + stamp + `">` + said + `</time>`) //nolint:gosec // our own text
}

// clock shows the time of day, and the day if it is not today.
func clock(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	t = t.UTC()
	form := "15:04:05"
	if time.Since(t) > 12*time.Hour {
		form = "2 Jan 15:04"
	}
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339Nano) + `" title="` + t.Format(time.RFC3339) + `">` + t.Format(form) + `</time>`) //nolint:gosec // our own text
}

func bytesText(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

func percent(f float64) string { return strconv.FormatFloat(f*100, 'f', 0, 64) + " %" }

// number3 formats f with about three digits.
func number3(f float64) string {
	if f >= 100 || f == float64(int(f)) {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}

func some(f *float64) string {
	if f == nil {
		return "–"
	}
	return number3(*f)
}

// plural formats a count, such as "1 build" or "2 builds".
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}
