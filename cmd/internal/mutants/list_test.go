package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Stale mutants don't fail this test: nobody who changes code should have to know them.
// `make check` prints them, and `make mutants` fails.
func TestTheListOfMutantsCanBeRead(t *testing.T) {
	t.Parallel()
	list, stale, err := load(filepath.Join("..", "..", ".."))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(list), 20)
	seen := map[string]bool{}
	for _, m := range list {
		require.False(t, seen[m.name], "%s: is there twice", m.name)
		seen[m.name] = true
		if stale[m] != nil {
			t.Logf("stale: %s: %v", m.name, stale[m])
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	list, err := parse("# why\nmutant: a b\npromise: c\ntest: x/y TestOne|TestTwo/some part\nin: x/z.f\nskip: g()\nin: x.T.m\nreplace: a => b => c\n")
	require.NoError(t, err)
	require.Equal(t, []*mutant{{
		name: "a b", promise: "c", pkg: "x/y", tests: "^(TestOne|TestTwo)$/some part",
		changes: []change{{"x/z", "f", "skip", "g()", ""}, {"x", "T.m", "replace", "a", "b => c"}},
	}}, list)
	require.Equal(t, []string{"TestOne", "TestTwo"}, list[0].names())
	const head = "mutant: m\npromise: p\ntest: x TestX\n"
	for _, wrong := range []string{"in: x.f", "mutant: a\ntest: pkg", "mutant: a\nwhat", head, head + "skip: s", head + "in: f\nskip: s", head + "in: x.f\nbreak: s"} {
		_, err := parse(wrong)
		require.Error(t, err, wrong)
	}
}

func TestMutate(t *testing.T) {
	t.Parallel()
	p := newProgram(t.TempDir())
	const head = "package p\n\nconst limit, other = 5, \"SELECT a\\n\\tFROM b\"\n\n"
	const body = "func (x *T[P]) f(a, b bool) bool {\n\tdefer one()\n\tfor a && b {\n\t\ttwo(1,\n\t\t\t2)\n\t}\n\tswitch {\n\tcase a:\n\t\tthree()\n\t}\n\treturn a || !b\n}\n"
	require.NoError(t, os.WriteFile(filepath.Join(p.root, "p.go"), []byte(head+body), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(p.root, "p_darwin.go"), []byte("package p\n\nfunc none() {}\n"), 0o600))
	for name, c := range map[string]struct {
		change
		from, to, err string
	}{
		"a constant":              {change: change{".", "limit", "replace", "= 5", "= 6"}, from: "= 5", to: "= 6"},
		"text of any spacing":     {change: change{".", "other", "cut", `a\n\tFROM`, ""}, from: `a\n\tFROM`},
		"a statement":             {change: change{".", "T.f", "skip", "one()", ""}, from: "defer one()", to: "if false { defer one()\n}"},
		"a statement of a loop":   {change: change{".", "T.f", "before", "two(1, 2)", "return a"}, from: "two(", to: "return a\ntwo("},
		"a statement of a case":   {change: change{".", "T.f", "skip", "three", ""}, from: "three()", to: "if false { three()\n}"},
		"half of a condition":     {change: change{".", "T.f", "never", "!b", ""}, from: "!b", to: "(false && (!b))"},
		"all of a condition":      {change: change{".", "T.f", "always", "a && b", ""}, from: "a && b", to: "(true || (a && b))"},
		"a case":                  {change: change{".", "T.f", "negate", "a", ""}, err: "4 times there"},
		"a result":                {change: change{".", "T.f", "negate", "a || !b", ""}, from: "a || !b", to: "!(a || !b)"},
		"what is in no condition": {change: change{".", "T.f", "never", "three", ""}, err: "in no statement or condition"},
		"another system":          {change: change{".", "none", "skip", "x", ""}, err: "no longer there"},
		"part of a word":          {change: change{".", "T.f", "cut", "retur", ""}, err: "0 times there"},
	} {
		files, err := p.mutate(&mutant{changes: []change{c.change}})
		if c.err != "" {
			require.ErrorContains(t, err, c.err, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, map[string]string{"./p.go": replaceOnce(t, head+body, c.from, c.to)}, files, name)
	}
}

// A mutant that was caught is not run again until it or its tests change.
func TestCaughtMutantsAreNotRunAgain(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	write("p_test.go", "package p\n")
	list := []*mutant{
		{name: "one", pkg: ".", tests: "TestOne", files: map[string]string{"p.go": "broken"}},
		{name: "two", pkg: ".", tests: "TestOne", files: map[string]string{"p.go": "broken differently"}},
	}
	r := &runner{journal: filepath.Join(root, "journal")}
	news := func() (names []string) {
		found := r.news(root, list)
		for _, m := range found {
			names = append(names, m.name)
		}
		return names
	}
	require.Equal(t, []string{"one", "two"}, news())
	require.NoError(t, r.note(list[0]))
	require.Equal(t, []string{"two"}, news())
	list[0].files["p.go"] = "broken and changed"
	require.Equal(t, []string{"one", "two"}, news())
	list[0].files["p.go"] = "broken"
	write("p_test.go", "package p // changed\n")
	require.Equal(t, []string{"one", "two"}, news())
}

func replaceOnce(t *testing.T, text, from, to string) string {
	t.Helper()
	parts := strings.Split(text, from)
	require.Len(t, parts, 2, from)
	return parts[0] + to + parts[1]
}
