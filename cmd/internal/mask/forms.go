package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// minLine is the shortest line of a value that is masked by itself, in bytes.
	minLine = 8
	// minValue is what must be left of a value without the white space around it, in bytes;
	// else the white space belongs to it. Shorter encoded forms are too common.
	minValue = 6
)

// form is one text by which a value may show.
type form struct {
	text []byte
	// wrapped forms may have a line break anywhere after wide bytes.
	wrapped bool
}

// forms returns those of a value, none for an empty one.
func forms(value []byte) (all []form) {
	if trimmed := bytes.TrimSpace(value); len(trimmed) >= minValue {
		value = trimmed
	}
	if len(value) == 0 {
		return nil
	}
	seen := map[string]bool{}
	add := func(wrapped bool, texts ...string) {
		for _, text := range texts {
			if !seen[text] && (len(text) >= minValue || text == string(value)) {
				seen[text] = true
				all = append(all, form{[]byte(text), wrapped})
			}
		}
	}
	add(false, string(value))
	add(false, escapes(string(value))...)
	for line := range bytes.Lines(value) {
		if line = bytes.TrimSpace(line); len(line) >= minLine {
			add(false, string(line))
			add(false, escapes(string(line))...)
		}
	}
	lower := hex.EncodeToString(value)
	add(true, lower, strings.ToUpper(lower))
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		add(true, base64Forms(enc, value)...)
	}
	return all
}

// base64Forms returns a value at each of the three offsets that it can have within text that is
// encoded: the characters that depend on nothing else, and those at the end of the text.
func base64Forms(enc *base64.Encoding, value []byte) (all []string) {
	for offset := range 3 {
		text := append(make([]byte, offset, offset+len(value)), value...)
		encoded := enc.EncodeToString(text)
		begin, end := (8*offset+5)/6, 8*len(text)/6
		all = append(all, encoded[begin:end], strings.TrimRight(encoded[begin:], "="), encoded[begin:])
	}
	return all
}

// escapes returns a text as it stands in URLs, in JSON, and between single quotes of a shell.
func escapes(text string) []string {
	urls := []string{
		percent(text, "-._~", "%20"),                 // RFC 3986
		percent(text, "-._~", "+"),                   // forms
		percent(text, "-._~!*'()", "%20"),            // JavaScript's encodeURIComponent
		percent(text, "-._~$&+:=@", "%20"),           // Go's paths
		percent(text, "-._~!*'();/?:@&=+$,#", "%20"), // JavaScript's encodeURI
		percent(text, "-._~/", "%20"),                // Python's quote
	}
	for _, url := range slices.Clone(urls) {
		urls = append(urls, lowerHex(url))
	}
	all := append(slices.Clone(urls), strings.ReplaceAll(text, "'", `'\''`), strings.ReplaceAll(text, "'", `'"'"'`))
	for _, html := range []bool{false, true} {
		plain := quote(text, html)
		for _, quoted := range []string{plain, strings.ReplaceAll(plain, "/", `\/`)} {
			all = append(all, quoted, ascii(quoted), upperHex(quoted), upperHex(ascii(quoted)))
		}
	}
	return all
}

// percent escapes all but letters, digits and keep.
func percent(text, keep, space string) string {
	const digits = "0123456789ABCDEF"
	var out strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(keep, c) >= 0:
			out.WriteByte(c)
		case c == ' ':
			out.WriteString(space)
		default:
			out.WriteByte('%')
			out.WriteByte(digits[c>>4])
			out.WriteByte(digits[c&15])
		}
	}
	return out.String()
}

// lowerHex makes the digits of %XX small.
func lowerHex(url string) string {
	out := []byte(url)
	for i := 0; i+2 < len(out); i++ {
		if out[i] == '%' {
			copy(out[i+1:], bytes.ToLower(out[i+1:i+3]))
			i += 2
		}
	}
	return string(out)
}

// upperHex makes the digits of \uXXXX capitals.
func upperHex(quoted string) string {
	out := []byte(quoted)
	for i := 0; i+5 < len(out); i++ {
		if out[i] != '\\' {
			continue
		}
		if i++; out[i] == 'u' {
			copy(out[i+1:], bytes.ToUpper(out[i+1:i+5]))
		}
	}
	return string(out)
}

// quote is the inside of a JSON string.
func quote(text string, html bool) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(html)
	_ = e.Encode(text) // can't fail: it is a string
	quoted := strings.TrimSuffix(out.String(), "\n")
	return quoted[1 : len(quoted)-1]
}

// ascii escapes what is not ASCII in the inside of a JSON string.
func ascii(quoted string) string {
	var out strings.Builder
	for _, r := range quoted {
		switch {
		case r < utf8.RuneSelf:
			out.WriteRune(r)
		case r > 0xFFFF:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}
