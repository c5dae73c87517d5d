package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The list stays applicable, so that nobody finds it rotten when it is run.
func TestEveryMutantAppliesAndItsTestIsThere(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(listFile)))
	require.NoError(t, err)
	list, err := parse(string(text))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(list), 20)
	seen, tests := map[string]bool{}, map[string]string{}
	for _, m := range list {
		if seen[m.name] {
			t.Errorf("%s: is there twice", m.name)
		}
		seen[m.name] = true
		if _, err := m.mutate(root); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if tests[m.pkg] == "" {
			files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(m.pkg), "*_test.go"))
			require.NoError(t, err)
			for _, f := range files {
				source, err := os.ReadFile(f)
				require.NoError(t, err)
				tests[m.pkg] += string(source)
			}
		}
		for _, name := range m.names() {
			if !strings.Contains(tests[m.pkg], "\nfunc "+name+"(") {
				t.Errorf("%s: no %s in %s", m.name, name, m.pkg)
			}
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	list, err := parse("# why\nmutant: a b\npromise: c\ntest: x/y TestOne|TestTwo/some part\nfile: f.go\n- \told\n- two\n+ new\n- other\n\nmutant: d\n")
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, &mutant{
		name: "a b", promise: "c", pkg: "x/y", tests: "^(TestOne|TestTwo)$/some part",
		edits: []edit{{"f.go", "\told\ntwo", "new"}, {"f.go", "other", ""}},
	}, list[0])
	_, err = list[1].mutate(".")
	require.Error(t, err, "it changes nothing")
	for _, wrong := range []string{"file: f", "mutant: a\ntest: pkg", "mutant: a\nwhat", "mutant: a\n+ new"} {
		_, err := parse(wrong)
		require.Error(t, err, wrong)
	}
	m := &mutant{promise: "p", tests: "t", edits: []edit{{"list_test.go", "package main\n", ""}, {"list_test.go", "no such text " + "here", ""}}}
	_, err = m.mutate(".")
	require.ErrorContains(t, err, "0 times there")
}
