package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

//go:generate env TAKT_TEST_WRITE_DOCS=1 go test -count=1 -run ^TestThePromisesAreWrittenDown$ .

// root is the project's directory.
var root = filepath.Join("..", "..", "..")

const promisesFile = "docs/promises.md"

func promises(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, promisesFile))
	require.NoError(t, err)
	return string(text)
}

// explained returns the promises that have a heading.
func explained(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (P\d+): `).FindAllStringSubmatch(page, -1) {
		all[m[1]] = true
	}
	return all
}

// withMutants returns the page with the mutants of each promise below its mark, by their tests.
func withMutants(page string, list []*mutant) string {
	marks := regexp.MustCompile(`(?m)^<!-- mutants of (P\d+) -->\n(?:\n?- .*\n(?:  .*\n)*)*`)
	return marks.ReplaceAllStringFunc(page, func(part string) string {
		mark, _, _ := strings.Cut(part, "\n")
		of := marks.FindStringSubmatch(part)[1]
		var tests []string
		names := map[string]string{}
		for _, m := range list {
			if m.keeps == of {
				test := m.pkg + " " + strings.Join(m.names(), ", ")
				if names[test] == "" {
					tests = append(tests, test)
				}
				names[test] += "\n  - " + m.name
			}
		}
		for _, test := range tests {
			mark += fmt.Sprintf("\n- `%s` notices when:%s", test, names[test])
		}
		return strings.Replace(mark, "\n", "\n\n", 1) + "\n"
	})
}

func TestThePromisesAreWrittenDown(t *testing.T) {
	t.Parallel()
	page := promises(t)
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(listFile)))
	require.NoError(t, err)
	list, err := parse(string(text))
	require.NoError(t, err)
	ten := explained(page)
	require.Len(t, ten, 10)
	for _, m := range list {
		require.True(t, m.keeps == "" || ten[m.keeps], "%s: %s does not explain %s", m.name, promisesFile, m.keeps)
	}
	want := withMutants(page, list)
	if os.Getenv("TAKT_TEST_WRITE_DOCS") != "" {
		require.NoError(t, os.WriteFile(filepath.Join(root, promisesFile), []byte(want), 0o644))
	}
	require.True(t, want == page || os.Getenv("TAKT_TEST_WRITE_DOCS") != "", "%s is stale: make docs", promisesFile)
	for p := range ten {
		if !strings.Contains(want, "<!-- mutants of "+p+" -->\n\n- `") {
			t.Errorf("%s has no mutant", p)
		}
	}
	var tests strings.Builder
	for path, source := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			tests.WriteString(source)
		}
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z0-9]\w*`).FindAllString(want, -1) {
		if !strings.Contains(tests.String(), "\nfunc "+name+"(") {
			t.Errorf("%s: there is no %s", promisesFile, name)
		}
	}
}

// goFiles returns all Go code.
func goFiles(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && strings.HasPrefix(e.Name(), "."):
			return fs.SkipDir
		case e.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		source, err := os.ReadFile(path)
		all[path] = string(source)
		return err
	}))
	return all
}

// promised returns the numbers of promises that the comments and texts of Go code name. P50 and
// P95 are percentiles, and .p12 is a kind of file.
func promised(source string) (all []string) {
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile("", set.Base(), len(source)), []byte(source), nil, scanner.ScanComments)
	number := regexp.MustCompile(`(?:^|[^\w.])(P\d{1,2})\b`)
	for {
		_, tok, text := s.Scan()
		if tok == token.EOF {
			return all
		}
		if tok != token.COMMENT && tok != token.STRING {
			continue
		}
		for _, m := range number.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`^P(12|50|9\d)$`).MatchString(m[1]) {
				all = append(all, m[1])
			}
		}
	}
}

// A number that is explained nowhere says nothing to whoever reads the code.
func TestEveryPromiseThatTheCodeNamesIsExplained(t *testing.T) {
	t.Parallel()
	const none = "P" + "11"
	require.Equal(t, []string{"P3", none}, promised("package p\n\n// P3 is kept at the P95.\nvar P4 = `as "+none+"`\n"))
	ten, found := explained(promises(t)), 0
	for path, source := range goFiles(t) {
		for _, p := range promised(source) {
			require.True(t, ten[p], "%s: %s does not explain %s", path, promisesFile, p)
			found++
		}
	}
	require.Greater(t, found, 5)
}
