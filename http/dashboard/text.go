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

	"takt/http/forecast"
)

// plain makes untrusted text safe to read beside our own. It shows characters that
// are invisible, or that change how others are read, by their code. The templates
// escape HTML.
func plain(s string) string { return readable(s, " ") }

// readable is plain with something of its own for tabs.
func readable(s, tab string) string {
	if !strings.ContainsFunc(s, odd) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\t':
			b.WriteString(tab)
		case r == '\n':
			b.WriteByte(' ')
		case r < ' ': // its picture, such as ␛, which is no longer than 3 bytes
			b.WriteRune('␀' + r)
		case r == 0x7f:
			b.WriteRune('␡')
		case odd(r):
			fmt.Fprintf(&b, "‹U+%04X›", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// odd reports whether r is a control character, is invisible, or changes the
// direction of text.
func odd(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError
}

// clip shortens s to about n characters.
func clip(n int, s string) string {
	for at := range s {
		if n--; n < 0 {
			return s[:at] + "…"
		}
	}
	return s
}

// ago shows how long ago t was, with t itself as the title.
func ago(t time.Time) template.HTML {
	said := forecast.Rough(time.Since(t)) + " ago"
	switch until := time.Until(t); {
	case until > 0:
		said = "in " + forecast.Rough(until)
	case until > -10*time.Second:
		said = "just now"
	}
	return stamp(t, time.RFC3339, said, "ago")
}

// clock shows the time of day, and the day if it is not today. The script makes it local.
func clock(t time.Time) template.HTML {
	form, text := "hms", "15:04:05"
	if time.Since(t) > 12*time.Hour {
		form, text = "dhm", "2 Jan 15:04"
	}
	return stamp(t, time.RFC3339Nano, t.UTC().Format(text+" UTC"), form)
}

// stamp shows text for the time t, which is precise to the form. local is the form that the
// script gives it.
func stamp(t time.Time, form, text, local string) template.HTML {
	if t.IsZero() {
		return "–"
	}
	t = t.UTC()
	return template.HTML(`<time datetime="` + t.Format(form) + `" data-form="` + local + `" title="` + t.Format("2006-01-02 15:04:05 UTC") + `">` + text + `</time>`) //nolint:gosec // our own text
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

// plural formats a count, such as "1 build", "2 builds" or "2 processes".
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	} else if strings.HasSuffix(one, "s") {
		one += "e"
	}
	return strconv.Itoa(n) + " " + one + "s"
}
