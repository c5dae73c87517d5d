package runner

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzLines cuts the same output into pieces in two ways: the lines are the same.
func FuzzLines(f *testing.F) {
	f.Add([]byte("one\ntwo\r\nthree"), uint8(3))
	f.Add([]byte(strings.Repeat("ä", 40)+"\n\n\n"), uint8(1))
	f.Add([]byte("\x00\x1b[31mred\xff\xfe\n"), uint8(2))
	f.Fuzz(func(t *testing.T, output []byte, piece uint8) {
		cut := func(size int) (lines []string) {
			w := &lineWriter{limit: 32, emit: func(line string) { lines = append(lines, line) }}
			for rest := output; len(rest) > 0; {
				n := min(size, len(rest))
				require.Equal(t, n, must(w.Write(rest[:n]))(t))
				rest = rest[n:]
			}
			w.close()
			return lines
		}
		whole := cut(len(output) + 1)
		require.Equal(t, whole, cut(int(piece)+1))
		for _, line := range whole {
			require.True(t, utf8.ValidString(line), "%q", line)
			require.NotContains(t, line, "\n")
			require.NotContains(t, line, "\x00")
		}
	})
}
