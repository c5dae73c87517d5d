package actors

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/repo"
)

// outline renders a specification as lines of depth, id and strategy.
func outline(id string, spec *otp.SupSpec, depth int) []string {
	line := strings.Repeat("  ", depth) + id
	if spec == nil {
		return []string{line}
	}
	lines := []string{line + " " + spec.Strategy.String()}
	if spec.Strategy == otp.Dynamic {
		return lines
	}
	for _, c := range spec.Children {
		if c.Supervisor == nil {
			lines = append(lines, outline(c.ID, nil, depth+1)...)
			continue
		}
		sub := c.Supervisor()
		lines = append(lines, outline(c.ID, &sub, depth+1)...)
	}
	return lines
}

// drawn reads the same lines from the drawing in the package comment.
func drawn(t *testing.T) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	known := map[string]bool{"one_for_one": true, "one_for_all": true, "rest_for_one": true, "dynamic:": true}
	var lines []string
	for line := range strings.Lines(f.Doc.Text()) {
		if !strings.HasPrefix(line, "\t") {
			continue
		}
		line = strings.TrimPrefix(line, "\t")
		bare := strings.TrimLeft(line, "│├└─ ")
		depth := (len([]rune(line)) - len([]rune(bare))) / 4
		fields := strings.Fields(bare)
		out := strings.Repeat("  ", depth) + fields[0]
		if len(fields) > 1 && known[fields[1]] {
			out += " " + strings.Replace(fields[1], "dynamic:", otp.Dynamic.String(), 1)
		}
		lines = append(lines, out)
	}
	return lines
}

func TestDrawingAndTreeAreEqual(t *testing.T) {
	t.Parallel()
	tree := New(Config{Embedded: &repo.PostgresConfig{DataDir: t.TempDir()}}, Deps{Logger: zerolog.Nop()})
	spec := tree.spec()
	require.Equal(t, drawn(t), outline(root, &spec, 0))
}

func TestNoPostgresWithAnExternalDatabase(t *testing.T) {
	t.Parallel()
	source, err := repo.URL("postgres://nobody@127.0.0.1:1/nothing")
	require.NoError(t, err)
	tree := New(Config{Database: source}, Deps{Logger: zerolog.Nop()})
	spec := tree.repo()
	require.Equal(t, []string{"repo rest_for_one", "  pool", "  listener"}, outline("repo", &spec, 0))
}
