package githubtest

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"takt/store/storetest/needs"
)

// Token is the credential that a Forge made by Start accepts.
const Token = "ghs_0123456789abcdefTheTokenOfTests"

// Forge is a Server that listens, for a test.
type Forge struct {
	*Server
	// URL is the address of the REST interface.
	URL string
}

// Start runs a forge with the organisations "from" and "to" until the test ends.
func Start(tb testing.TB, edit ...func(*Config)) *Forge {
	tb.Helper()
	cfg := Config{Dir: tb.TempDir(), Tokens: []string{Token}}
	for _, e := range edit {
		e(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	s.AddOrg("from")
	s.AddOrg("to")
	listening := httptest.NewServer(s)
	tb.Cleanup(func() {
		listening.CloseClientConnections()
		listening.Close()
	})
	return &Forge{Server: s, URL: listening.URL + "/"}
}

// Fill adds n repositories to "from", named prefix-000 and so on. They are copies of
// template, each with its own branch and tag.
func (f *Forge) Fill(tb testing.TB, prefix string, n int, template string) {
	tb.Helper()
	needs.Git(tb)
	id := RefsOf(tb, template)["refs/heads/main"]
	for i := range n {
		name := fmt.Sprintf("%s-%03d", prefix, i)
		r, err := f.Add(Repo{Org: "from", Name: name, Description: "about " + name}, template)
		if err != nil {
			tb.Fatal(err)
		}
		for _, ref := range []string{"refs/heads/only-" + r.Name, "refs/tags/v" + r.Name, "refs/pull/1/head"} {
			if err := writeRef(f.Dir("from", name), ref, id); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

func writeRef(dir, ref, id string) error {
	path := filepath.Join(dir, filepath.FromSlash(ref))
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(id+"\n"), 0o600)
}

// RefsOf reads the branches and tags of a bare repository.
func RefsOf(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	refs, err := readRefs(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return refs
}

// Compare reads a repository's branches and tags in two organisations. It reports whether
// they are the same and how many the second has.
func (s *Server) Compare(from, to, name string) (same bool, refs int, err error) {
	want, err := readRefs(s.Dir(from, name))
	if err != nil {
		return false, 0, err
	}
	got, err := readRefs(s.Dir(to, name))
	if err != nil {
		return false, 0, fmt.Errorf("%s was not copied: %w", name, err)
	}
	return maps.Equal(want, got), len(got), nil
}

// Template makes a real bare repository below dir, with a few commits, branches and tags.
func Template(dir string) (string, error) {
	bare := filepath.Join(dir, "template.git")
	script := `set -e
git init -q -b main work && cd work
git config user.email sample@example.org && git config user.name Sample
for i in 1 2 3; do echo "line $i" >> file.txt; git add .; git commit -q -m "change $i"; done
git branch feature/one HEAD~1
git tag v1.0.0 HEAD~2
git tag -a -m "the first" v1.1.0
cd .. && git clone -q --bare --template= work template.git && rm -rf work`
	cmd := exec.Command("sh", "-c", script) // bounded: a handful of small commits
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_DATE="+fixedDate, "GIT_COMMITTER_DATE="+fixedDate)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making a template: %w: %s", err, out)
	}
	return bare, nil
}

// Import fills a bare repository from a stream for git fast-import.
func Import(dir, stream string) error {
	_, err := git(dir, stream, "fast-import", "--quiet")
	return err
}

const fixedDate = "2025-11-24T16:00:00Z"

// Patience is how long tests wait for something that should happen soon.
const Patience = 30 * time.Second
