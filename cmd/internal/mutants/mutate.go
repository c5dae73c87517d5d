package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"takt/cmd/internal/must"
)

// kind returns what a change called name is about, nil for the text itself, and what that
// becomes. Statements and conditions are kept beside what replaces them, so that no
// variable becomes unused.
func kind(name string) (parts func(ast.Node) []ast.Node, become func(part, with string) string) {
	switch name {
	case "replace", "cut":
		return nil, func(_, with string) string { return with }
	case "skip":
		return statements, func(part, _ string) string { return "if false { " + part + "\n}" }
	case "before":
		return statements, func(part, with string) string { return with + "\n" + part }
	case "never":
		return conditions, func(part, _ string) string { return "(false && (" + part + "))" }
	case "always":
		return conditions, func(part, _ string) string { return "(true || (" + part + "))" }
	case "negate":
		return conditions, func(part, _ string) string { return "!(" + part + ")" }
	}
	return nil, nil
}

// program is the source below root, its packages read at their first use.
type program struct {
	root     string
	fset     *token.FileSet
	packages map[string]map[string]*ast.File // by directory and path
	texts    map[string]string
}

func newProgram(root string) *program {
	return &program{root, token.NewFileSet(), map[string]map[string]*ast.File{}, map[string]string{}}
}

// read parses what Linux compiles of the package in dir.
func (p *program) read(dir string) map[string]*ast.File {
	if files, ok := p.packages[dir]; ok {
		return files
	}
	linux := build.Default
	linux.GOOS = "linux"
	pkg := must.Get(linux.ImportDir(filepath.Join(p.root, filepath.FromSlash(dir)), 0))
	files := map[string]*ast.File{}
	for _, name := range slices.Concat(pkg.GoFiles, pkg.CgoFiles) {
		text := must.Get(os.ReadFile(filepath.Join(pkg.Dir, name)))
		name = dir + "/" + name
		files[name] = must.Get(parser.ParseFile(p.fset, name, text, parser.SkipObjectResolution))
		p.texts[name] = string(text)
	}
	p.packages[dir] = files
	return files
}

// find returns the declaration called name, or Type.method.
func find(files map[string]*ast.File, name string) ast.Node {
	for _, file := range files {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if receiver(d)+d.Name.Name == name {
					return d
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						if s.Name.Name == name {
							return s
						}
					case *ast.ValueSpec:
						if slices.ContainsFunc(s.Names, func(n *ast.Ident) bool { return n.Name == name }) {
							return s
						}
					}
				}
			}
		}
	}
	return nil
}

func receiver(f *ast.FuncDecl) (prefix string) {
	if f.Recv != nil {
		ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool { // *T[P] is T
			if id, ok := n.(*ast.Ident); ok && prefix == "" {
				prefix = id.Name + "."
			}
			return true
		})
	}
	return prefix
}

// edit puts text between two offsets of a file.
type edit struct {
	file     string
	from, to int
	text     string
}

// locate returns the edit that makes c.
func (p *program) locate(c change) (e edit) {
	decl := find(p.read(c.dir), c.decl)
	if decl == nil {
		must.Do(fmt.Errorf("%s.%s is no longer there", c.dir, c.decl))
	}
	e.file = p.fset.Position(decl.Pos()).Filename
	base := p.fset.Position(decl.Pos()).Offset
	text := p.texts[e.file][base:p.fset.Position(decl.End()).Offset]
	found := fragment(c.what).FindAllStringIndex(text, -1)
	if len(found) != 1 {
		must.Do(fmt.Errorf("%s.%s: %d times there, want once: %s", c.dir, c.decl, len(found), c.what))
	}
	e.from, e.to = found[0][0], found[0][1]
	parts, become := kind(c.kind)
	if parts != nil {
		part := innermost(decl, decl.Pos()+token.Pos(e.from), decl.Pos()+token.Pos(e.to), parts)
		if part == nil {
			must.Do(fmt.Errorf("%s: that is in no statement or condition", c))
		}
		e.from, e.to = int(part.Pos()-decl.Pos()), int(part.End()-decl.Pos())
	}
	e.text = become(text[e.from:e.to], c.with)
	e.from, e.to = base+e.from, base+e.to
	return e
}

var tokens = regexp.MustCompile(`\w+|[^\w\s]`)

// fragment matches text, however it is spaced.
func fragment(text string) *regexp.Regexp {
	word := func(s string) bool { return regexp.MustCompile(`^\w`).MatchString(s) }
	var b strings.Builder
	last := ""
	for _, t := range tokens.FindAllString(text, -1) {
		switch {
		case last == "":
			if word(t) {
				b.WriteString(`\b`)
			}
		case word(last) && word(t):
			b.WriteString(`\s+`)
		default:
			b.WriteString(`\s*`)
		}
		b.WriteString(regexp.QuoteMeta(t))
		last = t
	}
	if word(last) {
		b.WriteString(`\b`)
	}
	return regexp.MustCompile(b.String())
}

func nodes[N ast.Node](list []N) (all []ast.Node) {
	for _, n := range list {
		all = append(all, n)
	}
	return all
}

// statements returns the statements of the list that n is.
func statements(n ast.Node) []ast.Node {
	switch n := n.(type) {
	case *ast.BlockStmt:
		return nodes(n.List)
	case *ast.CaseClause:
		return nodes(n.Body)
	case *ast.CommClause:
		return nodes(n.Body)
	}
	return nil
}

// conditions returns the parts of n that are, or may be, conditions.
func conditions(n ast.Node) []ast.Node {
	switch n := n.(type) {
	case *ast.IfStmt:
		return []ast.Node{n.Cond}
	case *ast.ForStmt:
		if n.Cond != nil {
			return []ast.Node{n.Cond}
		}
	case *ast.CaseClause:
		return nodes(n.List)
	case *ast.ReturnStmt:
		return nodes(n.Results)
	case *ast.BinaryExpr:
		if n.Op == token.LAND || n.Op == token.LOR {
			return []ast.Node{n.X, n.Y}
		}
	}
	return nil
}

// innermost returns the smallest of the parts below root that has all between two
// positions.
func innermost(root ast.Node, from, to token.Pos, parts func(ast.Node) []ast.Node) (found ast.Node) {
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil || n.Pos() > from || n.End() < to {
			return false
		}
		for _, part := range parts(n) {
			if part.Pos() <= from && to <= part.End() {
				found = part
			}
		}
		return true
	})
	return found
}

// mutate returns the files that m changes, by their names below the root.
func (p *program) mutate(m *mutant) (files map[string]string, err error) {
	files = map[string]string{}
	return files, must.Try(func() {
		var edits []edit
		for _, c := range m.changes {
			edits = append(edits, p.locate(c))
		}
		slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(b.from, a.from) })
		for _, e := range edits {
			text := cmp.Or(files[e.file], p.texts[e.file])
			files[e.file] = text[:e.from] + e.text + text[e.to:]
		}
	})
}
