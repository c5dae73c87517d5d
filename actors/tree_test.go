package actors

import (
	"fmt"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/database"
	"takt/actors/otp"
)

// outline renders a child as lines of depth, id, strategy with its budget, and time
// to stop.
func outline(c otp.ChildSpec, depth int) []string {
	line := strings.Repeat("  ", depth) + c.ID
	if c.Shutdown != 0 {
		line += fmt.Sprintf(" (%s)", short(c.Shutdown))
	}
	if c.Supervisor == nil {
		return []string{line}
	}
	spec := c.Supervisor()
	if spec.Strategy == otp.Dynamic {
		return []string{line + " dynamic"}
	}
	lines := []string{fmt.Sprintf("%s %s, %d in %s", line, spec.Strategy, spec.Intensity, short(spec.Period))}
	for _, child := range spec.Children {
		lines = append(lines, outline(child, depth+1)...)
	}
	return lines
}

func short(d time.Duration) string { return strings.ReplaceAll(d.String(), "m0s", "m") }

// drawn reads the same lines from the drawing in the package comment.
func drawn(t *testing.T) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	row := regexp.MustCompile(`^\t([│├└─ ]*)(\w+) +(?:(\w+_for_\w+, \d+ in \w+|dynamic):?)?.*?(\(\d+m?s\))?\n$`)
	var lines []string
	for line := range strings.Lines(f.Doc.Text()) {
		m := row.FindStringSubmatch(line)
		if m == nil {
			require.False(t, strings.HasPrefix(line, "\t"), line)
			continue
		}
		out := strings.Repeat("  ", utf8.RuneCountInString(m[1])/4) + m[2]
		for _, part := range []string{m[4], m[3]} {
			if part != "" {
				out += " " + part
			}
		}
		lines = append(lines, out)
	}
	return lines
}

func TestDrawingAndTreeAreEqual(t *testing.T) {
	t.Parallel()
	tree := New(Config{Embedded: &database.PostgresConfig{DataDir: t.TempDir()}}, Deps{Logger: zerolog.Nop()})
	require.Equal(t, drawn(t), outline(otp.ChildSpec{ID: root, Supervisor: tree.spec}, 0))
}

func TestNoPostgresWithAnExternalDatabase(t *testing.T) {
	t.Parallel()
	source, err := database.URL("postgres://nobody@127.0.0.1:1/nothing")
	require.NoError(t, err)
	tree := New(Config{Database: source}, Deps{Logger: zerolog.Nop()})
	lines := outline(otp.ChildSpec{ID: root, Supervisor: tree.spec}, 0)
	require.Equal(t, []string{"  database rest_for_one, 3 in 1m", "    pool (10s)", "    listener", "  pubsub"}, lines[2:6])
}
