package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/client"
	"takt/store"
)

// differing is what two runs do not have in common.
var differing = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`[A-Za-z0-9_-]{21}`), "ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:]+Z`), "WHEN"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d`), "TIME"},
	{regexp.MustCompile(`\b[\d.]+m?s\b`), "DURATION"},
	{regexp.MustCompile(`\d+ B of source`), "SIZE of source"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`warning: load average.*`), "healthy"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

func alike(text string) string {
	for _, d := range differing {
		text = d.re.ReplaceAllString(text, d.with)
	}
	return strings.TrimSpace(text)
}

// The commands of the page are run in their order, and print what it shows.
func TestTutorialShowsWhatCommandsPrint(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/tutorial.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```(console|text)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	s := newSite(t)
	c := s.controller("takt")
	dir, bin := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(s.Takt, filepath.Join(bin, "takt")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "app"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "app", "main.txt"), []byte("hello world\n"), 0o600))
	names := strings.NewReplacer("$TAKT_URL", c.URL)
	for _, b := range blocks {
		if b[1] == "text" {
			if strings.Contains(b[2], "TAKT_OUTPUT") { // the script
				require.NoError(t, os.WriteFile(filepath.Join(dir, "app", "build.sh"), []byte(b[2]), 0o600))
			}
			continue
		}
		for step := range strings.SplitSeq(strings.TrimPrefix(b[2], "$ "), "\n$ ") {
			command, want, _ := strings.Cut(step, "\n")
			switch {
			case strings.HasPrefix(command, "takt serve"):
				continue
			case strings.HasPrefix(command, "takt worker "):
				_, exec, _ := strings.Cut(command, "--exec '")
				s.worker(c, "mini-01", strings.TrimSuffix(exec, "'"))
				list, err := c.Client.List(t.Context(), client.Filter{})
				require.NoError(t, err)
				eventually(t, "the first build runs", func() bool { return status(t, c, list[0].ID).State == string(store.Building) })
				continue
			}
			run := exec.CommandContext(t.Context(), "bash", "-c", names.Replace(command))
			run.Dir = dir
			run.Env = s.Environment("PATH="+bin+":"+os.Getenv("PATH"), "TAKT_URL="+c.URL, "TAKT_API_KEY="+c.APIKey, "TAKT_ADMIN_KEY="+c.AdminKey, "XDG_STATE_HOME="+dir)
			got, err := run.CombinedOutput()
			require.NoError(t, err, "%s: %s", command, got)
			// What it waits for is up to two seconds old: the controller may not have seen the worker yet.
			waits := regexp.MustCompile(`(?m)^.*: pending\. .*\n`)
			want, got = waits.ReplaceAllString(want, ""), waits.ReplaceAll(got, nil)
			require.Equal(t, alike(want), alike(string(got)), command)
			if strings.HasPrefix(command, "takt submit") { // its id on the page is this one from now on
				told, made := strings.SplitN(want, "\n", 2)[0], strings.SplitN(string(got), "\n", 2)[0]
				if strings.Contains(command, "branch=main") {
					names = strings.NewReplacer("$TAKT_URL", c.URL, told[:4], made[:4])
				}
			}
		}
	}
}
