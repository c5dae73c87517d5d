package dashboard

import (
	"html/template"
	"regexp"
	"strconv"
	"strings"
)

// maxLine is the most bytes of a log line that a page shows.
const maxLine = 4000

var (
	// sequence matches an escape sequence: one with parameters up to its final byte, a string up
	// to BEL or ST, or one character. The end of the line ends each. Styles are parameters with
	// the final byte m.
	sequence = regexp.MustCompile(`(?s)\x1b(?:\[([^@-~]*)([@-~]|$)|[]P^_X].*?(?:\x07|\x1b\\|$)|.|$)`)
	// address matches a link in a log line, which ends in no punctuation.
	address = regexp.MustCompile("https?://[!#-&(-;=?-_a-z{}|~]*[#-&*+/-9=@-Z_a-z|~]")
	// escaped escapes what must be between tags.
	escaped = strings.NewReplacer("&", "&amp;", "<", "&lt;")
)

// ansi shows a log line with the styles of its escape sequences as classes, and with its
// links. It drops all other sequences, and what the line has overwritten after a carriage
// return. It is short also in JSON, which escapes double quotes.
func ansi(s string) template.HTML {
	s = strings.TrimRight(s, "\r")
	s = s[strings.LastIndexByte(s, '\r')+1:]
	if len(s) > maxLine {
		s = s[:maxLine] + "…"
	}
	var b strings.Builder
	var now style
	write := func(text string) {
		if text == "" {
			return
		}
		classes := now.classes()
		switch {
		case strings.Contains(classes, " "):
			b.WriteString("<i class='" + classes + "'>")
		case classes != "":
			b.WriteString("<i class=" + classes + ">")
		}
		at := 0
		for _, m := range address.FindAllStringIndex(text, -1) {
			link := template.HTMLEscapeString(text[m[0]:m[1]])
			b.WriteString(escaped.Replace(readable(text[at:m[0]], "\t")) + "<a href='" + link + "' rel='noopener noreferrer nofollow'>" + link + "</a>")
			at = m[1]
		}
		b.WriteString(escaped.Replace(readable(text[at:], "\t")))
		if classes != "" {
			b.WriteString("</i>")
		}
	}
	at := 0
	if strings.Contains(s, "\x1b") {
		for _, m := range sequence.FindAllStringSubmatchIndex(s, -1) {
			write(s[at:m[0]])
			if at = m[1]; m[4] >= 0 && s[m[4]:m[5]] == "m" {
				now.set(strings.Split(strings.ReplaceAll(s[m[2]:m[3]], ":", ";"), ";"))
			}
		}
	}
	write(s[at:])
	return template.HTML(b.String()) //nolint:gosec // escaped piece by piece
}

// style is how text is shown. Colours are the codes of the foreground, 30 to 37 and 90 to 97;
// 0 is the page's own.
type style struct {
	bold, underline, inverse bool
	text, ground             int
}

// classes returns a1 for bold, a4 for underlined, a and a colour for the text's, b and a
// colour for the background's. b0 is inverse.
func (s style) classes() string {
	var all []string
	if s.inverse {
		s.text, s.ground = s.ground, s.text
	}
	for _, c := range []struct {
		is    bool
		class string
	}{
		{s.bold, "a1"},
		{s.underline, "a4"},
		{s.text != 0, "a" + strconv.Itoa(s.text)},
		{s.ground != 0 || s.inverse, "b" + strconv.Itoa(s.ground)},
	} {
		if c.is {
			all = append(all, c.class)
		}
	}
	return strings.Join(all, " ")
}

// set applies the parameters of a sequence.
func (s *style) set(codes []string) {
	for len(codes) > 0 {
		n, err := strconv.Atoi(codes[0])
		if err != nil && codes[0] != "" {
			n = -1
		}
		codes = codes[1:]
		switch {
		case n == 0:
			*s = style{}
		case n == 1 || n == 22:
			s.bold = n == 1
		case n == 4 || n == 24:
			s.underline = n == 4
		case n == 7 || n == 27:
			s.inverse = n == 7
		case n >= 30 && n <= 37 || n >= 90 && n <= 97:
			s.text = n
		case n >= 40 && n <= 47 || n >= 100 && n <= 107:
			s.ground = n - 10
		case n == 39:
			s.text = 0
		case n == 49:
			s.ground = 0
		case n == 38:
			s.text, codes = extended(codes)
		case n == 48:
			s.ground, codes = extended(codes)
		}
	}
}

// extended reads a colour of 256, or a true one, and returns the nearest that has a class. If
// it can't be read, nothing after it can.
func extended(codes []string) (colour int, rest []string) {
	var n [5]int
	for i := range min(len(n), len(codes)) {
		n[i], _ = strconv.Atoi(codes[i])
		n[i] = min(max(n[i], 0), 255)
	}
	switch {
	case len(codes) >= 2 && n[0] == 5:
		c := n[1]
		switch {
		case c < 16:
			return coded(c), codes[2:]
		case c < 232:
			c -= 16
			cube := [6]int{0, 95, 135, 175, 215, 255}
			return nearest(cube[c/36], cube[c/6%6], cube[c%6]), codes[2:]
		}
		c = 8 + 10*(c-232)
		return nearest(c, c, c), codes[2:]
	case len(codes) >= 5 && n[0] == 2 && codes[1] == "": // the colour space of 38:2::R:G:B
		return nearest(n[2], n[3], n[4]), codes[5:]
	case len(codes) >= 4 && n[0] == 2:
		return nearest(n[1], n[2], n[3]), codes[4:]
	}
	return 0, nil
}

// coded returns the code of a colour of 16.
func coded(n int) int {
	if n < 8 {
		return 30 + n
	}
	return 82 + n
}

// nearest returns the code of the nearest colour of xterm's 16.
func nearest(r, g, b int) (code int) {
	least := 1 << 30
	for i, c := range [16][3]int{
		{0, 0, 0},
		{205, 0, 0},
		{0, 205, 0},
		{205, 205, 0},
		{0, 0, 238},
		{205, 0, 205},
		{0, 205, 205},
		{229, 229, 229},
		{127, 127, 127},
		{255, 0, 0},
		{0, 255, 0},
		{255, 255, 0},
		{92, 92, 255},
		{255, 0, 255},
		{0, 255, 255},
		{255, 255, 255},
	} {
		if d := (r-c[0])*(r-c[0]) + (g-c[1])*(g-c[1]) + (b-c[2])*(b-c[2]); d < least {
			least, code = d, coded(i)
		}
	}
	return code
}
