package dashboard

import (
	"html/template"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogLinesAreShownWithTheirColoursOnly(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"plain":                      "plain",
		"\x1b[32mgreen\x1b[0m light": `<span class="a32">green</span> light`,
		"\x1b[1;31mboth\x1b[m":       `<span class="a1 a31">both</span>`,
		"a\x1b[38;5;196mb":           "ab",
		"<b>\x1b[31m<i>":             `&lt;b&gt;<span class="a31">&lt;i&gt;</span>`,
		"\x1b]0;a title\x07text":     "text",
		"\x1b]8;;javascript:x\x1b\\link\x1b]8;;\x1b\\": "link",
		"\x1b[2J\x1b[Hcleared":                         "cleared",
		"cut \x1b[":                                    "cut ",
		"cut \x1b":                                     "cut ",
		"\u202Eabc":                                    "‹U+202E›abc",
		"a\tb\x00c":                                    "a\tb␀c",
	} {
		require.Equal(t, template.HTML(want), ansi(line), "%q", line)
	}
	require.Less(t, len(ansi(strings.Repeat("x", 100_000))), maxLine+10)
}

func FuzzANSI(f *testing.F) {
	for _, s := range []string{"\x1b[1;31mx\x1b[0m", "<script>", "\x1b]0;", "\x1b[", "a\x1bPb\x1b\\c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		out := string(ansi(line))
		require.NotContains(t, out, "\x1b")
		for _, tag := range strings.Split(out, "<")[1:] {
			require.True(t, strings.HasPrefix(tag, `span class="a`) || strings.HasPrefix(tag, "/span>"), out)
		}
	})
}

func TestTextOfStrangersStandsWhereItIs(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a‹U+202E›b", plain("a\u202Eb"))
	require.Equal(t, "␛[31m ␡", plain("\x1b[31m\n\x7f"))
	require.Equal(t, "äöü…", clip(3, "äöüß"))
}
