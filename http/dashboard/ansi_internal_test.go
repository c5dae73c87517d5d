package dashboard

import (
	"html/template"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogLinesAreShownWithTheirStylesOnly(t *testing.T) {
	t.Parallel()
	link := func(url string) string {
		return "<a href='" + url + "' rel='noopener noreferrer nofollow'>" + url + "</a>"
	}
	for line, want := range map[string]string{
		"plain":                                        "plain",
		"\x1b[32mgreen\x1b[0m light":                   "<i class=a32>green</i> light",
		"\x1b[1;31mboth\x1b[m":                         "<i class='a1 a31'>both</i>",
		"\x1b[4;97;41mx\x1b[24;39my":                   "<i class='a4 a97 b31'>x</i><i class=b31>y</i>",
		"\x1b[7mx\x1b[31my\x1b[27mz":                   "<i class=b0>x</i><i class=b31>y</i><i class=a31>z</i>",
		"\x1b[38;5;9mx\x1b[48;5;2my":                   "<i class=a91>x</i><i class='a91 b32'>y</i>",
		"\x1b[38;5;196;1mx":                            "<i class='a1 a91'>x</i>",
		"\x1b[38;5;240mx":                              "<i class=a90>x</i>",
		"\x1b[38;2;10;200;20mx":                        "<i class=a32>x</i>",
		"\x1b[38:2::10:200:20;4mx":                     "<i class='a4 a32'>x</i>",
		"a\x1b[38;5mb\x1b[38;9;1;31mc":                 "abc",
		"<b>\x1b[31m<i>":                               "&lt;b><i class=a31>&lt;i></i>",
		"\x1b]0;a title\x07text":                       "text",
		"\x1b]8;;javascript:x\x1b\\link\x1b]8;;\x1b\\": "link",
		"\x1b[2J\x1b[Hcleared":                         "cleared",
		"cut \x1b[":                                    "cut ",
		"cut \x1b":                                     "cut ",
		"\u202Eabc":                                    "‹U+202E›abc",
		"a\tb\x00c":                                    "a\tb␀c",
		" 10 %\r\x1b[K 55 %\r100 %\r":                  "100 %",
		"see https://example.org/a?b=1&c=2.":           "see " + strings.ReplaceAll(link("https://example.org/a?b=1&c=2"), "&", "&amp;") + ".",
		"(http://x/'onclick=1)":                        "(" + link("http://x/") + "'onclick=1)",
		"http://x/\u202Efdp":                           link("http://x/") + "‹U+202E›fdp",
		"javascript://x":                               "javascript://x",
	} {
		require.Equal(t, template.HTML(want), ansi(line), "%q", line)
	}
	require.Less(t, len(ansi(strings.Repeat("x", 100_000))), maxLine+10)
}

func FuzzANSI(f *testing.F) {
	for _, s := range []string{"\x1b[1;31mx\x1b[0m", "<script>", "\x1b]0;", "\x1b[", "a\x1bPb\x1b\\c", "\x1b[48;5;300;38;2;;mx", "https://x/'\"<>&", "a\rb"} {
		f.Add(s)
	}
	tag := regexp.MustCompile(`^(i class='[ab0-9 ]+'>|i class=[ab0-9]+>|/i>|a href='https?://[^'<>"\x00-\x20\x7f-\x{10ffff}]+' rel='noopener noreferrer nofollow'>|/a>)`)
	f.Fuzz(func(t *testing.T, line string) {
		out := string(ansi(line))
		require.NotContains(t, out, "\x1b")
		for _, piece := range strings.Split(out, "<")[1:] {
			require.Regexp(t, tag, piece, out)
		}
	})
}
