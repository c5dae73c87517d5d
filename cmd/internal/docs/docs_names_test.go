package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/settings"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/store/metrics"
)

// repository is what docs and comments may name.
type repository struct {
	root     string
	code     string          // of all files that are no pages, without Go's comments
	idents   map[string]bool // every identifier of Go, by name and by TYPE.MEMBER
	comments map[string]string
	flags    map[string]bool
	commands *cobra.Command
	routes   []*regexp.Regexp
	makefile string
}

func readRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{root: takttest.File(), idents: map[string]bool{}, comments: map[string]string{}, flags: map[string]bool{}, commands: command.New(cli.Environment(noVariables))}
	var code strings.Builder
	require.NoError(t, filepath.WalkDir(r.root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && path != r.root && (name == ".git" || name == ".cache" || name == "bin" || name == "dist"):
			return fs.SkipDir
		case d.IsDir() || strings.HasSuffix(name, ".md"):
			return nil
		case strings.HasSuffix(name, ".go"):
			return r.addGo(path, &code)
		}
		raw, err := os.ReadFile(path)
		code.Write(raw)
		return err
	}))
	r.code = code.String()
	makefile, err := os.ReadFile(filepath.Join(r.root, "Makefile"))
	require.NoError(t, err)
	r.makefile = "\n" + string(makefile)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, usage := range []string{cmd.Flags().FlagUsages(), cmd.PersistentFlags().FlagUsages()} {
			for _, m := range regexp.MustCompile(`--([a-z0-9-]+)`).FindAllStringSubmatch(usage, -1) {
				r.flags[m[1]] = true
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(r.commands)
	for _, route := range api.Routes() {
		pattern := regexp.MustCompile(`[:{][a-z_]+}?`).ReplaceAllString(regexp.QuoteMeta(route.Path), `[^/]+`)
		r.routes = append(r.routes, regexp.MustCompile("^"+strings.ReplaceAll(pattern, `\*`, ".*")+"$"))
	}
	return r
}

// addGo adds a file's identifiers, its comments and, without them, its code.
func (r *repository) addGo(path string, code *strings.Builder) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, raw, parser.ParseComments)
	if err != nil {
		return err
	}
	r.idents[file.Name.Name] = true
	ast.Inspect(file, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			r.idents[id.Name] = true
		}
		return true
	})
	var comments strings.Builder
	text := string(raw)
	for _, group := range file.Comments {
		for _, c := range group.List {
			comments.WriteString(c.Text + "\n")
			text = strings.Replace(text, c.Text, "", 1)
		}
	}
	r.comments[path] = comments.String()
	code.WriteString(text)
	return nil
}

var (
	pageLink     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeBlock    = regexp.MustCompile("(?s)```.*?```")
	codeSpan     = regexp.MustCompile("`([^`]+)`")
	pageHeading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	testName     = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w+`)
	flagName     = regexp.MustCompile(`(?:^|[\s(])--([a-z][a-z0-9-]+)`)
	variableName = regexp.MustCompile(`\bTAKT_[A-Z0-9_]*[A-Z0-9]\b`)
	metricName   = regexp.MustCompile(`\btakt_[a-z0-9_]+[a-z0-9]\b`)
	commandLine  = regexp.MustCompile(`^(?:[A-Z_]+=\S* )*(?:bin/)?takt ([a-z][a-z ]*)`)
	makeTarget   = regexp.MustCompile(`^make ([a-z0-9-]+)`)
	routePath    = regexp.MustCompile(`^(?:GET |HEAD |POST |PUT |PATCH |DELETE )?(/(?:api|admin)[\w/:.-]*|/(?:health|healthz|livez|readyz|metrics)\b)`)
	goFile       = regexp.MustCompile(`\b[\w/.-]*\w\.(?:go|sql|md|sh)\b`)
	goLink       = regexp.MustCompile(`\[\*?((?:[a-zA-Z_]\w*\.){0,2}[A-Z]\w+)\]`)
	goMember     = regexp.MustCompile(`\b([a-z]\w+)\.([a-z]\w+)\b`)
	migrationOf  = regexp.MustCompile("`(migrations/[^`]+\\.sql)`,\\s+`([a-z_]+)`")
	fileNames    = regexp.MustCompile("`([a-z0-9_]+/[a-z0-9_/]+\\.go)`(?:,\\s+`([A-Za-z0-9_.]+)`)?")
)

// TestPagesNameWhatExists checks what pages link to, and what they mark as code: commands,
// flags, variables, routes, metrics, files, make's targets, tests.
func TestPagesNameWhatExists(t *testing.T) {
	t.Parallel()
	r := readRepository(t)
	pages, err := filepath.Glob(filepath.Join(r.root, "docs", "*.md"))
	require.NoError(t, err)
	for _, page := range append(pages, filepath.Join(r.root, "README.md"), filepath.Join(r.root, "CONTRIBUTING.md")) {
		raw, err := os.ReadFile(page)
		require.NoError(t, err)
		text := codeBlock.ReplaceAllString(string(raw), "")
		for _, m := range pageLink.FindAllStringSubmatch(text, -1) {
			r.checkLink(t, page, m[1])
		}
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			r.checkCode(t, filepath.Base(page), strings.Join(strings.Fields(m[1]), " "))
		}
		for _, m := range fileNames.FindAllStringSubmatch(text, -1) {
			source, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(m[1])))
			if !errorsNone(t, err, page) {
				continue
			}
			if !regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|type |var |const |\t)`+regexp.QuoteMeta(m[2])+`\b`).Match(source) && m[2] != "" {
				t.Errorf("%s: %s does not declare %s", page, m[1], m[2])
			}
		}
		for _, m := range migrationOf.FindAllStringSubmatch(text, -1) {
			if last := r.lastDefinition(t, m[2]); last != m[1] {
				t.Errorf("%s: %s is defined by %q last, not by %s", page, m[2], last, m[1])
			}
		}
	}
}

// lastDefinition returns the last migration that defines a function, trigger, view, table or
// index; "" if none does.
func (r *repository) lastDefinition(t *testing.T, name string) (last string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(r.root, "migrations", "*.up.sql")) // in their order
	require.NoError(t, err)
	defines := regexp.MustCompile(`(?im)^create (or replace )?(function|trigger|view|table|(unique )?index) (if not exists )?` + name + `\b`)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		if defines.Match(raw) {
			last = "migrations/" + filepath.Base(file)
		}
	}
	return last
}

func errorsNone(t *testing.T, err error, page string) bool {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %s", page, err)
	}
	return err == nil
}

func (r *repository) checkLink(t *testing.T, page, to string) {
	t.Helper()
	if strings.Contains(to, "://") {
		return
	}
	name, anchor, _ := strings.Cut(to, "#")
	file := page
	if name != "" {
		file = filepath.Join(filepath.Dir(page), filepath.FromSlash(name))
	}
	raw, err := os.ReadFile(file)
	if !errorsNone(t, err, page) || anchor == "" {
		return
	}
	for _, h := range pageHeading.FindAllStringSubmatch(string(raw), -1) {
		slug := regexp.MustCompile(`[^\p{L}\p{N} -]`).ReplaceAllString(strings.ToLower(h[1]), "")
		if strings.ReplaceAll(slug, " ", "-") == anchor {
			return
		}
	}
	t.Errorf("%s: %s has no heading for #%s", page, name, anchor)
}

// checkCode checks one span of code on a page.
func (r *repository) checkCode(t *testing.T, page, text string) {
	t.Helper()
	for _, m := range commandLine.FindAllStringSubmatch(text, -1) {
		words := strings.Fields(m[1])
		cmd, _, err := r.commands.Find(words)
		if words[0] == "help" { // cobra adds it when it runs
			continue
		}
		if err != nil || !cmd.HasParent() || cmd.Hidden || cmd.Parent() != r.commands && cmd.Parent().Hidden {
			t.Errorf("%s: no command %q", page, text)
		}
	}
	if strings.HasPrefix(text, "--") || strings.Contains(text, "takt ") && !strings.Contains(text, "=takt") {
		for _, m := range flagName.FindAllStringSubmatch(text, -1) {
			if !r.flags[m[1]] && !regexp.MustCompile(`^(init|db|seed|builds)$`).MatchString(m[1]) { // other programs' flags
				t.Errorf("%s: no flag --%s in %q", page, m[1], text)
			}
		}
	}
	for _, name := range variableName.FindAllString(text, -1) {
		if !strings.Contains(r.code, name) && !isSetting(name) {
			t.Errorf("%s: no variable %s", page, name)
		}
	}
	for _, name := range metricName.FindAllString(text, -1) {
		_, ok := metrics.Find(name)
		if series := takttest.MetricNames(name); !ok && series[0] != name {
			_, ok = metrics.Find(series[0])
		}
		if !ok && !strings.Contains(text, name+"_") && !strings.Contains(r.code, name) { // takt_throttle_… are several
			t.Errorf("%s: no metric or table %s", page, name)
		}
	}
	if m := makeTarget.FindStringSubmatch(text); m != nil && !strings.Contains(r.makefile, "\n"+m[1]+":") {
		t.Errorf("%s: no %s", page, text)
	}
	if m := routePath.FindStringSubmatch(text); m != nil && !r.serves(m[1]) {
		t.Errorf("%s: no route %s", page, m[1])
	}
	for _, name := range testName.FindAllString(text, -1) {
		if !r.idents[name] {
			t.Errorf("%s: no test %s", page, name)
		}
	}
}

func isSetting(name string) bool {
	c := settings.Default("")
	for _, s := range settings.Table(&c) {
		if slices.Contains(s.Env(), name) {
			return true
		}
	}
	return false
}

func (r *repository) serves(path string) bool {
	path = strings.TrimRight(path, "/.")
	for _, route := range r.routes {
		if route.MatchString(path) || strings.HasPrefix(route.String()[1:], regexp.QuoteMeta(path)) {
			return true
		}
	}
	return false
}

// TestCommentsNameWhatExists checks which files, tests and identifiers Go's comments name:
// links of Go's documentation, and name.member.
func TestCommentsNameWhatExists(t *testing.T) {
	t.Parallel()
	r := readRepository(t)
	for file, text := range r.comments {
		for _, name := range testName.FindAllString(text, -1) {
			if !r.idents[name] {
				t.Errorf("%s: no test %s", file, name)
			}
		}
		for _, name := range goFile.FindAllString(text, -1) {
			found, _ := filepath.Glob(filepath.Join(filepath.Dir(file), filepath.FromSlash(name)))
			rooted, _ := filepath.Glob(filepath.Join(r.root, filepath.FromSlash(name)))
			if len(found)+len(rooted) == 0 && !strings.Contains(r.code, filepath.Base(name)) && !strings.Contains(name, "N") { // NAME.sql
				t.Errorf("%s: no file %s", file, name)
			}
		}
		for _, m := range goLink.FindAllStringSubmatch(text, -1) {
			for part := range strings.SplitSeq(m[1], ".") {
				if !r.idents[part] {
					t.Errorf("%s: no %s", file, m[0])
				}
			}
		}
		for _, m := range goMember.FindAllStringSubmatch(text, -1) {
			if r.idents[m[1]] && !r.idents[m[2]] && !strings.Contains(r.code, m[0]) && !regexp.MustCompile(`^(css|go|rst)$`).MatchString(m[2]) {
				t.Errorf("%s: no %s", file, m[0])
			}
		}
	}
}
