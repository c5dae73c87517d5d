package docs_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/settings"
)

var manualDir = flag.String("manual", "", "directory that the man pages are written to")

// TestManual writes the man pages, which deploy/package/build puts into the package. The
// program that writes them is a test, so that bin/takt does not contain it.
func TestManual(t *testing.T) {
	t.Parallel()
	dir := *manualDir
	if dir == "" {
		dir = t.TempDir()
	}
	root := command.New(cli.Environment(noVariables))
	root.DisableAutoGenTag = true
	plainText(root)
	require.NoError(t, doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "takt", Manual: "takt"}, dir))

	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	require.NoError(t, err)
	require.Greater(t, len(pages), 40)
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, section := range []string{".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"} {
			require.True(t, bytes.Contains(raw, []byte(section)), "%s has no %s", page, section)
		}
	}
	serve, err := os.ReadFile(filepath.Join(dir, "takt-serve.1"))
	require.NoError(t, err)
	for _, s := range settings.Table(new(settings.Config)) {
		require.Contains(t, string(serve), `--`+s.Name+`\fP`, "a setting")
	}
}

// plainText makes descriptions Markdown, which cobra makes man pages from. A line that is
// indented begins or continues an example.
func plainText(cmd *cobra.Command) {
	markdown := strings.NewReplacer("*", `\*`, "<", `\<`, "_", `\_`, "[", `\[`, "`", "\\`")
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = markdown.Replace(f.Usage) })
	var out strings.Builder
	example := false
	for line := range strings.Lines(cmd.Long) {
		if indented := strings.HasPrefix(line, " "); indented != example {
			example = indented
			out.WriteString("\n")
		}
		if example {
			out.WriteString("\t" + line)
		} else {
			out.WriteString(markdown.Replace(line))
		}
	}
	cmd.Long = out.String()
	for _, child := range cmd.Commands() {
		plainText(child)
	}
}
