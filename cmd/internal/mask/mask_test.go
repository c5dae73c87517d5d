package mask

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const password = `p"ä/s+s w'rd&1`

func TestFormsOfAValue(t *testing.T) {
	t.Parallel()
	quoted, err := json.Marshal(password)
	require.NoError(t, err)
	key := "-----BEGIN KEY-----\n\tab cd\n  0123456789abcdef\n-----END KEY-----\n"
	long := strings.Repeat("0123456789", 20)
	wrap := func(text string, width int, end string) (out string) {
		for ; len(text) > width; text = text[width:] {
			out += text[:width] + end
		}
		return out + text
	}
	for _, tt := range []struct{ name, value, text, want string }{
		{"as it is", password, "it is " + password + ".", "it is ***."},
		{"twice in a row, as one", "secret", "secretsecret secret", "*** ***"},
		{"overlapping itself", "abcabc", "xabcabcabcx", "x***x"},
		{"without the space around it", " hunter2\n", `{"p":"hunter2"}`, `{"p":"***"}`},
		{"short, and mostly space", "a     \n", "a    \na     \n", "a    \n***"},
		{"the lines of a key", key, "  0123456789abcdef  \nab cd\n-----BEGIN KEY-----", "  ***  \nab cd\n***"},
		{"a whole key", key, "<" + key + ">", "<***\n>"},
		{"with another line break", key, strings.ReplaceAll(key, "\n", "\r\n"), "***\r\n\tab cd\r\n  ***\r\n***\r\n"},
		{"in a URL", password, "https://user:" + url.QueryEscape(password) + "@host/" + url.PathEscape(password), "https://user:***@host/***"},
		{"in a URL, with small digits", password, "?p=p%22%c3%a4%2fs%2bs%20w%27rd%261&q", "?p=***&q"},
		{"in a URL, by encodeURIComponent", password, "?p=p%22%C3%A4%2Fs%2Bs%20w'rd%261&q", "?p=***&q"},
		{"in JSON", password, `{"p":` + string(quoted) + `}`, `{"p":"***"}`},
		{"in JSON, in ASCII", password, `{"p":"p\"\u00e4/s+s w'rd&1"}`, `{"p":"***"}`},
		{"in JSON, all at once with capitals", password, `{"p":"p\"\u00E4\/s+s w'rd\u00261"}`, `{"p":"***"}`},
		{"in JSON, with what looks like an escape", `a\u00e4/b"c`, `"a\\u00e4\/b\"c"`, `"***"`},
		{"in JSON, a pair of surrogates", "a😀bcdef", `"a\ud83d\ude00bcdef"`, `"***"`},
		{"in JSON, with escaped slashes", "https://x/y", `"https:\/\/x\/y"`, `"***"`},
		{"in JSON, several lines", key, `"` + strings.ReplaceAll(strings.ReplaceAll(key, "\n", `\n`), "\t", `\t`) + `"`, `"***\n"`},
		{"in the trace of a shell", "it's so", `+ curl -u 'it'\''s so'`, `+ curl -u '***'`},
		{"in hexadecimal", password, hex.EncodeToString([]byte(password)) + strings.ToUpper(hex.EncodeToString([]byte(password))), "***"},
		{"in base64", "hunter2", "aHVudGVyMg== aHVudGVyMgo=", "*** ***o="},
		{"in base64, after one byte", "hunter2", base64.StdEncoding.EncodeToString([]byte("xhunter2")) + ".", "eG***."},
		{"in base64, after two", "hunter2", base64.RawURLEncoding.EncodeToString([]byte("xyhunter2")) + ".", "eHl***."},
		{"in base64, after three", "hunter2", base64.StdEncoding.EncodeToString([]byte("xyzhunter2")) + ".", "eHl6***."},
		{"in base64 for URLs", "\xfb\xff\xbe\xfb\xff\xbe", base64.URLEncoding.EncodeToString([]byte("\xfb\xff\xbe\xfb\xff\xbe")), "***"},
		{"in base64 with line breaks", long, wrap(base64.StdEncoding.EncodeToString([]byte(long)), 76, "\n") + "\n", "***\n"},
		{"in base64 with line breaks of mail", long, wrap(base64.StdEncoding.EncodeToString([]byte(long)), 64, "\r\n") + "\r\n", "***\r\n"},
		{"in hexadecimal with line breaks", long, wrap(hex.EncodeToString([]byte(long)), 60, "\n") + "\n", "***\n"},
		{"half of it, at the end", long, "cut: " + long[:100], "cut: ***"},
		{"less of it, at the end", long, "cut: " + long[:99], "cut: " + long[:99]},
		{"none", password, "nothing here\n", "nothing here\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, New([]byte(tt.value)).String(tt.text))
		})
	}
}

func TestNoSetMasksNothing(t *testing.T) {
	t.Parallel()
	s := New(nil, []byte{})
	require.Nil(t, s)
	require.Equal(t, "text", s.String("text"))
	require.Equal(t, "text", string(s.Stream().Feed([]byte("text"))))
	require.Empty(t, s.Stream().Flush())
	require.Empty(t, s.Stream().FlushLines())
	require.False(t, s.Stream().HoldsLine())
}

// TestAPauseReleasesLines that could be the beginning of a value, but not the unfinished line.
func TestAPauseReleasesLines(t *testing.T) {
	t.Parallel()
	s := New([]byte("{\n  \"a\": 1,\n  \"long enough\": 2\n}")).Stream()
	require.Equal(t, "x ", string(s.Feed([]byte("x {\n  \"a"))))
	require.True(t, s.HoldsLine())
	require.Equal(t, "{\n", string(s.FlushLines()))
	require.False(t, s.HoldsLine())
	require.Equal(t, "  \"a", string(s.Flush()))
	require.Empty(t, s.Feed([]byte("{\n  \"a\": 1,\n  \"long ")))
	require.Equal(t, "***", string(s.FlushLines()), "half of it")
	require.Equal(t, "enough?\n", string(s.Feed([]byte("enough?\n"))))
}

// slow does what a stream does, one byte and one form after the other.
func slow(text string, values ...[]byte) string {
	masked := make([]bool, len(text))
	for _, value := range values {
		for _, f := range forms(value) {
			for i := range text {
				seen, covered, open := f.match([]byte(text[i:]))
				if seen == len(f.text) || open && seen >= minLine && 2*seen >= len(f.text) {
					for j := range covered {
						masked[i+j] = true
					}
				}
			}
		}
	}
	var out strings.Builder
	for i := range len(text) {
		switch {
		case !masked[i]:
			out.WriteByte(text[i])
		case i == 0 || !masked[i-1]:
			out.WriteString(Mark)
		}
	}
	return out.String()
}

// encodings are independent of those of the package.
func encodings(value string) []string {
	quoted, _ := json.Marshal(value)
	return []string{
		value, strings.ToUpper(hex.EncodeToString([]byte(value))), hex.EncodeToString([]byte(value)),
		base64.StdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)),
		url.QueryEscape(value), url.PathEscape(value), strings.Trim(string(quoted), `"`),
	}
}

func values(t *rapid.T) [][]byte {
	alphabet := rapid.SampledFrom([]string{"a", "b", "ab", "\n", "\n", "'", "%", "é", "=", "+", " ", "\xff", "\x00"})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []byte {
		return []byte(strings.Join(rapid.SliceOfN(alphabet, 6, 30).Draw(t, "letters"), ""))
	}), 1, 4).Draw(t, "values")
}

// output is noise with values, pieces of them, and encodings.
func output(t *rapid.T, values [][]byte) string {
	return strings.Join(rapid.SliceOf(rapid.Custom(func(t *rapid.T) string {
		value := string(rapid.SampledFrom(values).Draw(t, "value"))
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return value
		case 1:
			from := rapid.IntRange(0, len(value)).Draw(t, "from")
			return value[from:rapid.IntRange(from, len(value)).Draw(t, "to")]
		case 2:
			return rapid.SampledFrom(encodings(rapid.SampledFrom([]string{"", "x", "xy"}).Draw(t, "before")+value)).Draw(t, "encoding")
		case 3:
			return rapid.SampledFrom([]string{"\n", "\r\n", "\r", "a", "b", "ab", "E", "0"}).Draw(t, "letter")
		}
		return rapid.StringN(0, 10, -1).Draw(t, "noise")
	})).Draw(t, "parts"), "")
}

// cut feeds a text to a stream in pieces.
func cut(t *rapid.T, set *Set, text string) string {
	s := set.Stream()
	var out strings.Builder
	for text != "" {
		n := rapid.IntRange(1, min(len(text), 20)).Draw(t, "piece")
		out.Write(s.Feed([]byte(text[:n])))
		text = text[n:]
	}
	out.Write(s.Flush())
	return out.String()
}

func TestAnyPiecesGiveTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		secrets := values(t)
		text := output(t, secrets)
		set := New(secrets...)
		want := slow(text, secrets...)
		require.Equal(t, want, set.String(text))
		require.Equal(t, want, cut(t, set, text))
	})
}

func TestNothingOfAValueIsLeft(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		secrets := values(t)
		got := cut(t, New(secrets...), output(t, secrets))
		for _, s := range secrets {
			value := string(s)
			if trimmed := strings.TrimSpace(value); len(trimmed) >= minValue {
				value = trimmed
			}
			for _, encoded := range append(encodings(value), base64.RawStdEncoding.EncodeToString([]byte(value))) {
				require.NotContains(t, got, encoded)
			}
			for line := range strings.Lines(value) {
				if line = strings.TrimSpace(line); len(line) >= minLine {
					require.NotContains(t, got, line)
				}
			}
			for before := range 3 { // without the characters on which the value's neighbours have a part
				encoded := base64.StdEncoding.EncodeToString([]byte("xx"[:before] + value + "x"))
				require.NotContains(t, got, encoded[(8*before+5)/6:8*(before+len(value))/6])
			}
		}
	})
}

func TestTextWithoutValuesIsUnchanged(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		secrets := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 8, 40), 1, 4).Draw(t, "values")
		text := strings.Join(rapid.SliceOf(rapid.Custom(func(t *rapid.T) string {
			if rapid.Bool().Draw(t, "noise") {
				return rapid.String().Draw(t, "text")
			}
			whole := rapid.SampledFrom(encodings(string(rapid.SampledFrom(secrets).Draw(t, "value")))).Draw(t, "encoding")
			return whole[:min(rapid.IntRange(0, 5).Draw(t, "length"), len(whole))] + "\t" // less than any form has
		})).Draw(t, "parts"), "")
		require.Equal(t, text, cut(t, New(secrets...), text))
	})
}

// TestWhatIsKeptOfAStream is bounded, also by output that begins like a value for ever.
func TestWhatIsKeptOfAStream(t *testing.T) {
	t.Parallel()
	s := New([]byte(strings.Repeat("a", 1000) + "b")).Stream()
	line := []byte(strings.Repeat("YWFh\n", 100) + strings.Repeat("a", 500) + strings.Repeat("YWFhYWFh\n\n", 100))
	for range 100 {
		s.Feed(line)
		require.Less(t, len(s.held), 10_000)
	}
}

func secrets(n int) (all [][]byte) {
	for i := range n {
		value := fmt.Sprintf("ghp_%d_%s", i, hex.EncodeToString([]byte(fmt.Sprint("secret", i*7919))))
		if i%8 == 0 { // a key
			value = "-----BEGIN PRIVATE KEY-----\n"
			for j := range 27 {
				value += base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%048d", i*1000003+j*7919)) + "\n"
			}
			value += "-----END PRIVATE KEY-----\n"
		}
		all = append(all, []byte(value))
	}
	return all
}

// BenchmarkStream masks 64 secrets, eight of them keys of 29 lines, in the output of a build,
// piece by piece as a pipe delivers it.
func BenchmarkStream(b *testing.B) {
	set := New(secrets(64)...)
	var text strings.Builder
	for i := 0; text.Len() < 1<<20; i++ {
		fmt.Fprintf(&text, "> Task :app:compile%dJavaWithJavac FROM-CACHE 0x%08x %s\n", i, i*2654435761, "node_modules/react-native/ReactCommon/jsi/jsi.cpp")
	}
	near := strings.Repeat("ghp_1_ghp_2_-----BEGIN CERTIFICATE-----\n", 1<<20/40)
	for name, output := range map[string]string{"output": text.String(), "nearly": near} {
		b.Run(name, func(b *testing.B) {
			stream := set.Stream()
			b.SetBytes(int64(len(output)))
			for b.Loop() {
				for rest := []byte(output); len(rest) > 0; {
					n := min(len(rest), 32<<10)
					stream.Feed(rest[:n])
					rest = rest[n:]
				}
			}
		})
	}
}
